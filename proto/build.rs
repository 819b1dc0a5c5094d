//! Generates the messages and services, without protoc. A message that holds a secret (the proto
//! marks each such field with the option `csi_secret`) gets a Debug that does not show it (rule 11).

use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use prost_reflect::{FieldDescriptor, MessageDescriptor};

const PROTOS: [&str; 2] = ["csi.proto", "zvolt.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    for proto in PROTOS {
        println!("cargo:rerun-if-changed={proto}");
    }
    let mut compiler = protox::Compiler::new(["."])?;
    compiler.include_imports(true).open_files(PROTOS)?;
    let secretive: Vec<MessageDescriptor> = compiler
        .descriptor_pool()
        .all_messages()
        .filter(|message| message.fields().any(|field| is_secret(&field)))
        .collect();

    tonic_prost_build::configure()
        // A call that a service does not have answers UNIMPLEMENTED.
        .generate_default_stubs(true)
        .skip_debug(secretive.iter().map(|m| format!(".{}", m.full_name())))
        .compile_fds(compiler.file_descriptor_set())?;

    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    fs::write(out.join("redacted.rs"), redacted(&secretive)?)?;
    // For the tests, which pin what is on the wire.
    fs::write(
        out.join("descriptors.bin"),
        compiler.encode_file_descriptor_set(),
    )?;
    Ok(())
}

fn is_secret(field: &FieldDescriptor) -> bool {
    field.options().extensions().any(|(extension, value)| {
        extension.full_name() == "csi.v1.csi_secret" && value.as_bool() == Some(true)
    })
}

/// `impl Debug` for each of these messages, and the names of their secret fields for the tests.
fn redacted(messages: &[MessageDescriptor]) -> Result<String, Box<dyn Error>> {
    let mut code = String::new();
    let mut secrets = Vec::new();
    for message in messages {
        let name = message.name();
        if message.full_name() != format!("csi.v1.{name}") {
            return Err(format!(
                "{} holds a secret: only messages at the top of csi.v1 can get a Debug without it; \
                 teach proto/build.rs its Rust path",
                message.full_name()
            )
            .into());
        }
        writeln!(code, "impl std::fmt::Debug for {name} {{")?;
        writeln!(
            code,
            "    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {{"
        )?;
        writeln!(code, "        f.debug_struct({name:?})")?;
        for field in message.fields() {
            let field_name = field.name();
            if field.containing_oneof().is_some() {
                return Err(format!("{}: a oneof beside a secret", field.full_name()).into());
            }
            if is_secret(&field) {
                secrets.push(format!("{name}.{field_name}"));
                writeln!(
                    code,
                    "            .field({field_name:?}, &format_args!(\"<redacted>\"))"
                )?;
            } else {
                writeln!(
                    code,
                    "            .field({field_name:?}, &self.{field_name})"
                )?;
            }
        }
        writeln!(code, "            .finish()\n    }}\n}}\n")?;
    }
    secrets.sort();
    writeln!(
        code,
        "#[cfg(test)]\npub(crate) const SECRETS: &[&str] = &{secrets:?};"
    )?;
    Ok(code)
}
