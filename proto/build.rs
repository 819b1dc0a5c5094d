//! Generates the messages and services, without protoc. A message that holds a secret (the proto
//! marks each such field with the option `csi_secret`) gets a Debug that does not show it (rule 11).

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use prost_reflect::{FieldDescriptor, MessageDescriptor};

fn main() -> Result<(), Box<dyn Error>> {
    let protos = ["csi.proto", "zvolt.proto"];
    for proto in protos {
        println!("cargo:rerun-if-changed={proto}");
    }
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).open_files(protos)?;
    let pool = compiler.descriptor_pool();
    let secretive: Vec<MessageDescriptor> = pool
        .all_messages()
        .filter(|message| message.fields().any(|field| is_secret(&field)))
        .collect();

    tonic_prost_build::configure()
        // A call that a service does not have answers UNIMPLEMENTED.
        .generate_default_stubs(true)
        .skip_debug(secretive.iter().map(|m| format!(".{}", m.full_name())))
        .compile_fds(compiler.file_descriptor_set())?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?).join("redacted.rs");
    std::fs::write(out, redacted(&secretive)?)?;
    Ok(())
}

fn is_secret(field: &FieldDescriptor) -> bool {
    field
        .options()
        .extensions()
        .any(|(extension, value)| extension.name() == "csi_secret" && value.as_bool() == Some(true))
}

fn redacted(messages: &[MessageDescriptor]) -> Result<String, std::fmt::Error> {
    let mut code = String::new();
    for message in messages {
        let name = message.name();
        writeln!(code, "impl std::fmt::Debug for {name} {{")?;
        writeln!(code, "    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{")?;
        writeln!(code, "        f.debug_struct({name:?})")?;
        let mut oneofs = Vec::new();
        for field in message.fields() {
            let field_name = match field.containing_oneof() {
                Some(oneof) if oneofs.contains(&oneof.name().to_owned()) => continue,
                Some(oneof) => {
                    oneofs.push(oneof.name().to_owned());
                    oneof.name().to_owned()
                }
                None => field.name().to_owned(),
            };
            if is_secret(&field) {
                writeln!(code, "            .field({field_name:?}, &format_args!(\"<redacted>\"))")?;
            } else {
                writeln!(code, "            .field({field_name:?}, &self.{field_name})")?;
            }
        }
        writeln!(code, "            .finish()\n    }}\n}}\n")?;
    }
    Ok(code)
}
