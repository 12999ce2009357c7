//! The workspace's own commands: code generation, tests and the gate, as one program in place of scripts.

mod abuse;
mod apt;
mod bench;
mod ci;
mod codegen;
mod coverage;
mod elf;
mod failure;
mod kernels;
mod members;
mod needs;
mod progress;
mod public_api;
mod rust_source;
mod step;
mod system;
mod target;
mod test;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(crate) use failure::Failure;
use needs::Install;

const HELP: &str = "\
The workspace's own commands.

Usage: cargo xtask <command>

  codegen             write csi-proto/src/generated from csi-proto/proto (no protoc needed)
  codegen --check     write nothing; fail and name each file that a fresh run would change
  test                run the tests of the whole workspace, doctests too; missing packages are installed first, where
                      this user and this system can (root, and apt)
  test --no-install   install nothing: print the command that would
  test --kernels      run those of csi-mount and the examples that ask the kernel on others than this machine's,
                      in an emulated machine: 5.10, 6.1, 6.12 and the newest, from Debian's packages; no root needed
  test --kernels 6.1 [SUITE]
                      on one of them, or `newest`, `all`, or `ends` as the gate does, without what takes long; only suites
                      with SUITE in `package/program`; several with commas between
  ci                  the gate: missing packages as for `test`, format, fresh codegen, clippy, tests, docs, each feature alone, a static build, and
                      the tests on the oldest and the newest kernel that can be had
  bench [OPTIONS]     measure the toolkit beside system calls, programs and other crates; write docs/benchmarks.md.
                      `bench --help` says more: --quick, --only, --compare, --resume, --instructions
  abuse [OPTIONS]     put a driver's servers under load after load; write what a well-behaved client sees meanwhile to
                      docs/abuse.md. With options it writes nothing: --quick, --only, or somebody else's driver;
                      `abuse --help` says more
  coverage            print what the spec asks of a plugin, who keeps it, and how many places cite it, with counts
  public-api          write docs/public-api/<crate>.txt: the public items of each published crate, read from its source
  public-api --count  print the number of public items of each published crate, and write nothing
  needs               list what the tests need of this machine, and what of it is missing

Root and ordinary users:
  Many tests mount filesystems and attach loop devices, which takes root with CAP_SYS_ADMIN; each does so in a mount
  namespace of its own and leaves nothing behind. As root, `test` runs everything. An ordinary user, and root on a
  machine that still lacks something, run all but the integration tests of csi-mount, those in files tests/root_*.rs
  and the unit tests in modules needs_root; the end says how many these are and what they need. For root that is a
  failure.

Exit status: 0 all is well; 1 something failed; 2 wrong usage, or the machine lacks something.
";

fn print_coverage(root: &Path) -> Result<(), Failure> {
    let coverage = coverage::Coverage::read(root)?;
    print!("{}", coverage.table());
    match coverage.problems() {
        problems if problems.is_empty() => Ok(()),
        problems => Err(Failure::new(problems.join("\n"))),
    }
}

fn write_public_api(root: &Path) -> Result<(), Failure> {
    for name in public_api::CRATES {
        let document = public_api::document(root, name);
        fs::create_dir_all(document.parent().unwrap_or(root))?;
        fs::write(document, public_api::list(root, name)?.join("\n") + "\n")?;
    }
    Ok(())
}

fn count_public_api(root: &Path) -> Result<(), Failure> {
    let mut all = 0;
    for name in public_api::CRATES {
        let count = public_api::count(&public_api::list(root, name)?);
        all += count;
        println!("{name:<16}{count:>6}");
    }
    println!("{:<16}{all:>6}", "all");
    Ok(())
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().map(PathBuf::from).unwrap_or_default();
    let result = match args.as_slice() {
        ["codegen"] => codegen::run(&root, codegen::Mode::Write),
        ["codegen", "--check"] => codegen::run(&root, codegen::Mode::Check),
        ["test"] => test::run(&root, Install::Missing),
        ["test", "--no-install"] => test::run(&root, Install::Nothing),
        ["test", "--kernels", rest @ ..] if rest.len() < 3 => {
            let choice = match rest.first() {
                None | Some(&"all") => kernels::Choice::All,
                Some(&"ends") => kernels::Choice::Ends,
                Some(name) => kernels::Choice::Named(name),
            };
            kernels::run(&root, &choice, rest.get(1).unwrap_or(&""), Install::Missing).map(drop)
        }
        ["ci"] => ci::run(&root),
        ["bench", options @ ..] => {
            bench::Options::parse(options).and_then(|options| bench::run(&root, &options))
        }
        ["abuse", options @ ..] => abuse::run(&root, options),
        ["coverage"] => print_coverage(&root),
        ["public-api"] => write_public_api(&root),
        ["public-api", "--count"] => count_public_api(&root),
        ["needs"] => needs::report(),
        ["help" | "--help" | "-h"] => {
            print!("{HELP}");
            Ok(())
        }
        [] => Err(Failure::usage(HELP)),
        other => Err(Failure::usage(format!("no such command: {}\n\n{HELP}", other.join(" ")))),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            failure.exit_code()
        }
    }
}
