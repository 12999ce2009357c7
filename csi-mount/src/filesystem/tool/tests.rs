//! Tools are run to their end or not at all.

use super::*;

const SHELL: Tool = Tool { program: "sh", package: "dash" };

fn shell(script: &str, limit: Duration) -> Result<Output> {
    SHELL.run(&["-c", script], limit)
}

#[test]
fn output_is_kept_in_order_and_bounded() {
    let output = shell("echo one; echo two >&2; exit 3", Duration::from_secs(60)).unwrap();
    assert_eq!((output.status.code(), output.text.as_str()), (Some(3), "one\ntwo\n"));
    let error = SHELL.failed(Path::new("/dev/x"), &output);
    assert!(error.to_string().contains("one | two"), "{error}");

    let flood = "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done";
    let output = shell(flood, Duration::from_secs(60)).unwrap();
    assert!(output.text.len() <= MAX_OUTPUT_BYTES && output.text.ends_with("line 19999\n"));
}

#[test]
fn a_program_that_takes_too_much_memory_is_killed_and_named() {
    // `tail` keeps the last line, which never ends.
    let greedy = Tool { program: "tail", package: "coreutils" };
    let bounds = Bounds { time: Duration::from_secs(60), memory: Some(64 << 20) };
    let error = greedy.run(&["/dev/zero"], bounds).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    assert!(error.to_string().contains("tail needed more than its 64 MiB"), "{error}");
    SHELL.run(&["-c", "true"], bounds).unwrap();
    let silent = SHELL.run(&["-c", "exec tail /dev/zero >/dev/null 2>&1"], bounds).unwrap_err();
    assert_eq!(silent.kind(), ErrorKind::OutOfMemory, "{silent}");
}

#[test]
fn a_child_left_behind_does_not_delay_the_caller_and_is_killed() {
    let output = shell("sleep 300 & echo $!", Duration::from_secs(60)).unwrap();
    let left_behind = PathBuf::from(format!("/proc/{}/cmdline", output.text.trim()));
    let gone = || std::fs::read(&left_behind).map_or(true, |line| line.is_empty());
    let end = Instant::now() + Duration::from_secs(30);
    while !gone() {
        assert!(Instant::now() < end, "{} lives on", left_behind.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The test starts itself again as a process that runs a tool, and kills that process.
#[test]
fn a_tool_dies_with_its_caller() {
    const FILE: &str = "TOOL_WRITES_ITS_ID_TO";
    if let Some(file) = std::env::var_os(FILE) {
        let script = format!("echo $$ > {}.new && mv {0}.new {0} && exec sleep 300", file.display());
        let _ = shell(&script, Duration::from_secs(300));
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("id");
    let (_crate, module) = module_path!().split_once("::").unwrap();
    let mut caller = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::a_tool_dies_with_its_caller")])
        .env(FILE, &file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        while !is_so() {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait("the tool does not start", &|| file.exists());
    caller.kill().unwrap();
    caller.wait().unwrap();
    let id = std::fs::read_to_string(&file).unwrap();
    let tool = PathBuf::from(format!("/proc/{}/cmdline", id.trim()));
    wait("the tool lives on", &|| std::fs::read(&tool).map_or(true, |line| line.is_empty()));
}

#[test]
fn a_program_sees_nothing_of_our_environment() {
    let output = shell("env; cat", Duration::from_secs(60)).unwrap();
    assert!(output.text.contains("LC_ALL=C"), "{}", output.text);
    assert!(!output.text.contains("CARGO"), "{}", output.text);
}

#[test]
fn the_input_of_a_program_is_visible_only_to_it() {
    let given = ToolInput {
        input: Some(b"pass\nword\0"),
        environment: &[("A_SETTING", "1")],
        ..ToolInput::default()
    };
    let script = "cat | od -c; echo $A_SETTING; tr '\\0' ' ' < /proc/$$/cmdline; cat /proc/$$/environ";
    let output = SHELL.run_with_input(&["-c", script], given, Duration::from_secs(60), |_| Ok(())).unwrap();
    let read = output.text.lines().next().unwrap();
    assert_eq!(read.split_whitespace().skip(1).collect::<String>(), "pass\\nword\\0");
    assert!(output.text.contains("\n1\n") && !output.text.contains("pass\nword"), "{}", output.text);
    let largest = vec![b'x'; INPUT];
    let given = ToolInput { input: Some(&largest), ..ToolInput::default() };
    let output = SHELL.run_with_input(&["-c", "wc -c"], given, Duration::from_secs(60), |_| Ok(())).unwrap();
    assert_eq!(output.text.trim(), INPUT.to_string());
}

#[test]
fn an_open_file_is_passed_and_named_in_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, "content").unwrap();
    let opened = std::fs::File::open(&path).unwrap();
    std::fs::rename(&path, directory.path().join("moved")).unwrap();
    let file = OpenFile { fd: opened.as_fd(), name: Path::new("/the/disk") };
    let script = format!("cat {0}; echo; echo of {0}", file.path());
    let given = ToolInput { file: Some(file), ..ToolInput::default() };
    let output = SHELL.run_with_input(&["-c", &script], given, Duration::from_secs(60), |_| Ok(())).unwrap();
    assert_eq!(output.text, "content\nof /the/disk\n");
    let other = shell(&script, Duration::from_secs(60)).unwrap();
    assert!(!other.text.contains("content"), "{}", other.text);
}

/// A counter that a program writes does not change while the program is stopped, and changes afterwards.
#[test]
fn a_stopped_program_does_nothing_until_it_continues() {
    let directory = tempfile::tempdir().unwrap();
    let counter = directory.path().join("counter");
    let script = format!("i=0; while :; do i=$((i+1)); echo $i > {}; done", counter.display());
    let read = || std::fs::read_to_string(&counter).unwrap_or_default();
    let mut stops = 0;
    let given = ToolInput { poll_interval: Some(Duration::from_millis(2)), ..ToolInput::default() };
    let ended = SHELL.run_with_input(&["-c", &script], given, Duration::from_secs(60), |running| {
        let before = running.while_stopped(|| {
            let before = read();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(read(), before);
            Ok(before)
        })?;
        let end = Instant::now() + Duration::from_secs(30);
        while read() == before {
            assert!(Instant::now() < end, "it does not go on");
        }
        stops += 1;
        if stops == 5 { Err(Error::new(ErrorKind::Busy, "count", "enough")) } else { Ok(()) }
    });
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Busy);
}
