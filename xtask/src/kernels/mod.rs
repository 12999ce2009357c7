//! `cargo xtask test --kernels`: the tests on other kernels than this machine's, under qemu's emulation.

mod archive;
mod build;
mod cpio;
mod image;
mod machine;
mod modules;
mod outcome;
mod passed;
mod suite;
mod suites;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use archive::{Archive, Flavour, Kernel, Version};
use build::Programs;
pub(crate) use build::programs_of;
use machine::{Boot, Scratch};
use outcome::Run;
use passed::Passed;
use suite::{InGate, Suite};
use suites::SUITES;

use crate::needs::{Install, Privilege, Work};
use crate::{Failure, needs, target};

/// The wanted kernels in addition to the newest one: those of Debian's releases, which most nodes have.
const WANTED: [Version; 3] = [Version::new(5, 10), Version::new(6, 1), Version::new(6, 12)];

/// The name of the newest kernel on the command line.
pub(crate) const NEWEST: &str = "newest";

/// The time after which a machine is stopped: for the gate's tests, and for all tests.
const GATE_LIMIT: Duration = Duration::from_secs(1800);
const LIMIT: Duration = Duration::from_secs(3600);

/// The folders of unpacked packages, by the lists of suites.
type Newest = BTreeMap<&'static str, PathBuf>;

/// The choice of kernels.
pub(crate) enum Choice<'a> {
    /// All wanted kernels.
    All,
    /// The oldest and the newest available kernel.
    Ends,
    /// The same in the gate, which does not boot a machine again that passed.
    Gate,
    /// Some tests on the newest available kernel, in the first ring of the gate, which boots as little again.
    Short,
    /// One kernel, for example `6.1` or `newest`.
    Named(&'a str),
}

/// Runs all suites on the chosen kernels. Returns the kernels that were not available.
///
/// `only` selects suites by a part of `package/program`, for trying one out.
pub(crate) fn run(
    root: &Path,
    choice: &Choice<'_>,
    only: &str,
    install: Install,
) -> Result<Vec<String>, Failure> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(Failure::usage(
            "the tests on other kernels need an x86_64 machine, because they are built for it",
        ));
    }
    let is_gate = matches!(choice, Choice::Ends | Choice::Gate) && only.is_empty();
    // A cluster needs root, and much more memory and time than a machine has elsewhere.
    let is_on_request = |suite: &Suite| suite.has_ceph || suite.in_gate == InGate::OnRequest;
    let is_chosen = |suite: &&Suite| suite.is_named(only) && !(is_on_request(suite) && only.is_empty());
    let mut chosen: Vec<Suite> = SUITES.iter().filter(is_chosen).copied().collect();
    provide(chosen.iter().any(|suite| suite.has_ceph), install)?;
    if is_gate {
        chosen = chosen.iter().filter_map(Suite::in_gate).collect();
    }
    if matches!(choice, Choice::Short) {
        chosen = chosen.iter().filter_map(Suite::in_short).collect();
    }
    if chosen.is_empty() {
        return Err(Failure::usage(format!("no suite's name contains {only}")));
    }
    println!("==> kernels");
    let mut machines = Vec::new();
    let mut not_run = Vec::new();
    for flavour in chosen.iter().map(|suite| suite.flavour).collect::<BTreeSet<_>>() {
        let (found, missing) = kernels(choice, flavour)?;
        let suites: Vec<Suite> = chosen.iter().filter(|suite| suite.flavour == flavour).copied().collect();
        machines.push((found, suites));
        not_run.extend(missing);
    }
    for kernel in machines.iter().flat_map(|(kernels, _)| kernels) {
        println!("    {:>6} {}", kernel.version, kernel.name);
    }
    not_run.iter().for_each(|line| println!("    {line}"));
    if machines.iter().all(|(kernels, _)| kernels.is_empty()) {
        return Err(Failure::new(format!("no kernel is available, so no test ran:\n{}", not_run.join("\n"))));
    }
    let newest =
        newest(machines.iter().filter(|(kernels, _)| !kernels.is_empty()).flat_map(|(_, suites)| suites))?;
    println!("==> static test programs");
    let programs = build::build(root, &chosen)?;
    let limit = match (is_gate || matches!(choice, Choice::Short), image::sample().is_empty()) {
        (true, _) => GATE_LIMIT,
        (false, true) => LIMIT,
        (false, false) => LIMIT * image::SAMPLE_FACTOR,
    };
    let mut runs = Vec::new();
    for (kernels, suites) in &machines {
        runs.extend(run_machines(kernels, suites, &programs, &newest, limit, choice)?);
    }
    not_run.extend(runs.iter().filter_map(Run::not_again));
    if only.is_empty() {
        SUITES.iter().filter(|suite| is_gate || is_on_request(suite)).for_each(|suite| match suite.in_gate {
            InGate::All => {}
            InGate::Only(part) => println!("only on request: {}: all but {part}", suite.test),
            InGate::Nothing | InGate::OnRequest => {
                println!("only on request: {}: {}", suite.test, suite.only);
            }
        });
    }
    verdict(&runs, &chosen, not_run)
}

/// Installs what is missing if it can.
///
/// # Errors
/// When something is still missing.
fn provide(has_ceph: bool, install: Install) -> Result<(), Failure> {
    let work = if has_ceph { &[Work::Kernels, Work::Ceph][..] } else { &[Work::Kernels] };
    needs::provide(work, install)?;
    let mut missing: Vec<String> = work.iter().flat_map(|work| needs::missing_programs(*work)).collect();
    if has_ceph && Privilege::of_this_process()? != Privilege::Mount {
        missing.push("root: the cluster has namespaces of its own".to_owned());
    }
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join("\n  ");
    Err(Failure::usage(format!("missing on this machine for the tests on other kernels:\n  {missing}")))
}

/// Runs as many machines at the same time as there are processors: a test waits more than it computes.
fn run_machines(
    kernels: &[Kernel],
    chosen: &[Suite],
    programs: &Programs,
    newest: &Newest,
    limit: Duration,
    choice: &Choice<'_>,
) -> Result<Vec<Run>, Failure> {
    let folder = target::static_dir()?.join("kernels");
    std::fs::create_dir_all(&folder)?;
    let run = |kernel: &Kernel| -> Result<Run, Failure> {
        let _alone = alone_with(kernel, &folder)?;
        println!("==> {}", kernel.name);
        let suites: Vec<&Suite> = chosen.iter().filter(|suite| suite.since <= kernel.version).collect();
        let mut all = Run::new(kernel.clone());
        let machine = |suite: &Suite| (suite.boot, suite.processors, suite.has_ceph);
        for (options, processors, has_ceph) in
            suites.iter().map(|suite| machine(suite)).collect::<BTreeSet<_>>()
        {
            let is_here = |suite: &&Suite| machine(suite) == (options, processors, has_ceph);
            let of_machine: Vec<&Suite> = suites.iter().copied().filter(is_here).collect();
            let initrd = Scratch(folder.join(format!("initrd-{}.cpio", kernel.version)));
            image::pack(&initrd.0, kernel, &of_machine, programs, newest)?;
            let ceph = programs.ceph.as_deref().filter(|_| has_ceph);
            let boot = Boot { options, initrd: &initrd.0, processors, ceph };
            all.join(match choice {
                Choice::Gate | Choice::Short => once(kernel, &boot, &folder, limit)?,
                _ => machine::run(kernel, &boot, &folder, limit)?,
            });
        }
        Ok(all)
    };
    let at_once = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs = Vec::new();
    for some in kernels.chunks(at_once) {
        let ended = std::thread::scope(|scope| {
            let machines: Vec<_> = some.iter().map(|kernel| scope.spawn(|| run(kernel))).collect();
            machines.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        for run in ended {
            runs.push(run.map_err(|_| Failure::new("the thread of a machine panicked"))??);
        }
    }
    Ok(runs)
}

/// Runs a machine, or repeats the results of an earlier gate in which it passed.
fn once(kernel: &Kernel, boot: &Boot<'_>, folder: &Path, limit: Duration) -> Result<Run, Failure> {
    let passed = Passed::of(kernel, boot, folder)?;
    if let Some(run) = passed.repeat(kernel)? {
        return Ok(run);
    }
    let run = machine::run(kernel, boot, folder, limit)?;
    passed.keep(&run)?;
    Ok(run)
}

/// Locks the folder for this kernel, because the machine's disk is in it: another run of this kernel waits.
fn alone_with(kernel: &Kernel, folder: &Path) -> Result<Flock<File>, Failure> {
    let file = File::create(folder.join(format!("lock-{}", kernel.version)))?;
    let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).or_else(|(file, _)| {
        println!("    {:>6} waits for another run in {}", kernel.version, folder.display());
        Flock::lock(file, FlockArg::LockExclusive)
    });
    lock.map_err(|(_, error)| Failure::new(format!("lock {}: {error}", folder.display())))
}

/// The unpacked packages that suites need in addition to this machine's programs, by the list of the suite.
fn newest<'s>(suites: impl Iterator<Item = &'s Suite>) -> Result<Newest, Failure> {
    let lists: BTreeSet<&str> = suites.map(|suite| suite.newest).filter(|list| !list.is_empty()).collect();
    if lists.is_empty() {
        return Ok(Newest::new());
    }
    let archive = Archive::open()?;
    let packages = |list: &'static str| list.split_whitespace().collect::<Vec<_>>();
    lists.into_iter().map(|list| Ok((list, archive.newest(&packages(list))?))).collect()
}

/// The chosen kernels, unpacked, and a line for each that is not available.
fn kernels(choice: &Choice<'_>, flavour: Flavour) -> Result<(Vec<Kernel>, Vec<String>), Failure> {
    let archive = Archive::open()?;
    let there = archive.kernels(flavour)?;
    let (wanted, mut not_run) = wanted(choice, &there)?;
    let kernels = match choice {
        Choice::Ends | Choice::Gate => ends(&wanted, |kernel| had(&archive, kernel, &mut not_run))?,
        _ => all(&wanted, |kernel| had(&archive, kernel, &mut not_run))?,
    };
    if matches!(choice, Choice::Named(_) | Choice::Short) && kernels.is_empty() {
        return Err(Failure::new(not_run.join("\n")));
    }
    Ok((kernels, not_run))
}

/// A version and its package.
type Package = (Version, String);

/// Fetches a kernel. If it is not available, adds a line with the reason.
fn had(archive: &Archive, kernel: &Package, not_run: &mut Vec<String>) -> Result<Option<Kernel>, Failure> {
    let (version, package) = kernel;
    let fetched = archive.fetch(*version, package)?;
    Ok(fetched.map_err(|why| not_run.push(format!("{version}: NOT RUN: {why}"))).ok())
}

fn all<K>(
    wanted: &[Package],
    mut had: impl FnMut(&Package) -> Result<Option<K>, Failure>,
) -> Result<Vec<K>, Failure> {
    wanted.iter().filter_map(|kernel| had(kernel).transpose()).collect()
}

/// The first and the last available kernel.
fn ends<K>(
    wanted: &[Package],
    mut had: impl FnMut(&Package) -> Result<Option<K>, Failure>,
) -> Result<Vec<K>, Failure> {
    let mut left = wanted.iter();
    let oldest = left.find_map(|kernel| had(kernel).transpose()).transpose()?;
    let newest = left.rev().find_map(|kernel| had(kernel).transpose()).transpose()?;
    Ok(oldest.into_iter().chain(newest).collect())
}

/// The chosen kernels in the index, and a line for each that is missing.
fn wanted(choice: &Choice<'_>, there: &[Package]) -> Result<(Vec<Package>, Vec<String>), Failure> {
    let newest = there.last().map(|(version, _)| *version);
    let all: Vec<Version> =
        WANTED.into_iter().chain(newest.filter(|newest| WANTED.iter().all(|w| w < newest))).collect();
    let asked = match choice {
        Choice::All | Choice::Ends | Choice::Gate => all,
        Choice::Named(NEWEST) | Choice::Short => newest.into_iter().collect(),
        Choice::Named(name) => {
            let version = Version::parse(name);
            let names = all.iter().map(Version::to_string).collect::<Vec<_>>().join(", ");
            let what =
                || Failure::usage(format!("unknown kernel {name}; the known kernels are {names}, {NEWEST}"));
            vec![version.ok_or_else(what)?]
        }
    };
    let mut found = Vec::new();
    let mut not_run = Vec::new();
    for version in &asked {
        match there.iter().find(|(other, _)| other == version) {
            Some(kernel) => found.push(kernel.clone()),
            None => not_run.push(format!("{version}: NOT RUN: not in the package indices")),
        }
    }
    if newest.is_none_or(|newest| WANTED.contains(&newest))
        && !matches!(choice, Choice::Named(_) | Choice::Short)
    {
        not_run.push(format!("{NEWEST}: NOT RUN: the package indices have no newer kernel"));
    }
    Ok((found, not_run))
}

fn verdict(runs: &[Run], chosen: &[Suite], not_run: Vec<String>) -> Result<Vec<String>, Failure> {
    for run in runs {
        for outcome in run.failed() {
            println!("\n---- {} on {}", outcome.test, run.kernel.name);
            println!("{}", outcome.failure.as_deref().unwrap_or_default());
        }
    }
    println!("\n{}", table::render(runs));
    for (run, suite) in runs.iter().flat_map(|run| chosen.iter().map(move |suite| (run, suite))) {
        for skip in suite.skipped(run.kernel.version) {
            println!("left out on {}: {}: {}: {}", run.kernel.version, suite.test, skip.test, skip.why);
        }
    }
    not_run.iter().for_each(|line| println!("{line}"));
    let failed: usize = runs.iter().map(|run| run.failed().count()).sum();
    if failed > 0 {
        return Err(Failure::new(format!("{failed} failed on other kernels")));
    }
    Ok(not_run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(choice: &Choice<'_>, there: &[(u32, u32)]) -> (Vec<String>, usize) {
        let there: Vec<_> =
            there.iter().map(|(major, minor)| (Version::new(*major, *minor), "p".to_owned())).collect();
        let (found, not_run) = wanted(choice, &there).expect("a choice");
        (found.iter().map(|(version, _)| version.to_string()).collect(), not_run.len())
    }

    #[test]
    fn which_kernels_are_chosen() {
        let all = [(5, 10), (6, 1), (6, 12), (7, 2)];
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&Choice::All, &all), (strings(&["5.10", "6.1", "6.12", "7.2"]), 0));
        assert_eq!(names(&Choice::All, &all[1..3]), (strings(&["6.1", "6.12"]), 2), "5.10 and a newest");
        assert_eq!(names(&Choice::Named("6.1"), &all), (strings(&["6.1"]), 0));
        assert_eq!(names(&Choice::Named(NEWEST), &all), (strings(&["7.2"]), 0));
        assert_eq!(names(&Choice::Named("4.19"), &all), (strings(&[]), 1));
        assert!(wanted(&Choice::Named("old"), &[]).is_err());
    }

    #[test]
    fn where_an_end_cannot_be_had_the_next_one_is_taken() {
        let wanted: Vec<Package> =
            [(5, 10), (6, 1), (6, 12), (7, 2)].map(|(a, b)| (Version::new(a, b), "p".to_owned())).into();
        let ends_without = |lacking: &[&str]| {
            let had = |(version, _): &Package| {
                let name = version.to_string();
                Ok((!lacking.contains(&name.as_str())).then_some(name))
            };
            ends(&wanted, had).expect("no failure")
        };
        assert_eq!(ends_without(&[]), ["5.10", "7.2"]);
        assert_eq!(ends_without(&["5.10", "7.2"]), ["6.1", "6.12"]);
        assert_eq!(ends_without(&["5.10", "6.1", "6.12"]), ["7.2"]);
        assert!(ends(&wanted, |_| Err::<Option<String>, _>(Failure::new("a full disk"))).is_err());
    }
}
