//! zvolt: a CSI driver for bare metal. The first argument is the mode.

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    zvolt::run()
}
