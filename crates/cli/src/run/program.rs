//! Starts the program with the preload library, forwards signals to it, and waits for it.

use super::run_dir::RunDir;
use crate::exec::Intercept;
use crate::failure::{Failure, Outcome};
use crate::{human, output, signals};
use forebay_client::{COUNTS_VARIABLE, RUN_SOCKET_VARIABLE, run_socket_value};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Mode, OFlags};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A signal that arrives this soon after the program's end was meant for the program: a terminal sends it to
/// both.
const LATE: Duration = Duration::from_millis(300);
/// Poll interval for program and server.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Lowest descriptor number for the directory of the programs' socket.
const PROGRAMS: i32 = 500;
/// How often a server that died is restarted.
const MAX_RESTARTS: u32 = 5;

/// What signals do in the current stage.
enum Stage {
    /// No program runs yet: signals end the command.
    Waiting,
    /// Signals go to the program; `received` counts them.
    Running { program: Pid, received: u32 },
    /// Signals end the drain, which began when the program ended.
    Draining { since: Instant },
}

/// Handles signals as long as the process runs.
#[derive(Clone)]
pub(super) struct SignalHandler {
    stage: Arc<Mutex<Stage>>,
    stop: Arc<AtomicBool>,
}

impl SignalHandler {
    /// Installs the handler. Until a program runs, signals end the command.
    pub(super) fn open() -> Outcome<SignalHandler> {
        let handler = SignalHandler { stage: Arc::new(Mutex::new(Stage::Waiting)), stop: Arc::default() };
        let receiver = handler.clone();
        signals::on_signal(move |signal| receiver.handle(signal))?;
        Ok(handler)
    }

    /// The flag that ends the drain.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// Fails if the command was interrupted.
    pub(super) fn check(&self) -> Outcome {
        if self.stop.load(Ordering::Relaxed) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock()
    }

    fn handle(&self, signal: Signal) {
        match &mut *self.lock() {
            Stage::Draining { since } if since.elapsed() < LATE && signal == Signal::INT => {}
            Stage::Waiting | Stage::Draining { .. } => self.stop.store(true, Ordering::Relaxed),
            Stage::Running { program, received } => {
                *received += 1;
                let forwarded = match *received {
                    1 if signal == Signal::INT && is_in_foreground() => None,
                    1 => Some(signal),
                    2 => Some(Signal::TERM),
                    _ => Some(Signal::KILL),
                };
                output::note(format_args!("waiting for the program to end; its data is drained then"));
                if let Some(signal) = forwarded {
                    // The program may have ended just now.
                    let _ = kill_process(*program, signal);
                }
            }
        }
    }
}

/// Whether this process is in the terminal's foreground group, so that Ctrl-C reaches the program too.
fn is_in_foreground() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let front = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    front == Some(rustix::process::getpgrp())
}

/// Runs the program until it ends.
pub(super) fn run(
    handler: &SignalHandler,
    run_dir: &mut RunDir,
    (prefix, intercept): (&Path, Intercept),
    words: &[OsString],
) -> Outcome<ExitStatus> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    // Through `exec`, which makes sure that the program does not outlive this process and its server.
    let mut command = Command::new(&this);
    command.args(["exec", "--with-parent", "--config", "/dev/null"]).arg("--service");
    command.arg(run_dir.server_process.service()).arg("--prefix").arg(prefix);
    command.arg("--intercept").arg(intercept.word()).arg("--").args(words);
    command.env(COUNTS_VARIABLE, run_dir.counts_file());
    let directory = run_dir
        .programs_dir()
        .map(|path| open_to_others(&path, &run_dir.server_process.service(), &mut command))
        .transpose()?;
    let mut stage = handler.lock();
    let mut child = command.spawn().map_err(|error| Failure::local("start", &this, &error))?;
    drop(directory);
    let program = Pid::from_child(&child);
    *stage = Stage::Running { program, received: 0 };
    drop(stage);
    let failed = |error: io::Error| Failure::Failed(format!("cannot wait for the program: {error}"));
    let mut revivals = 0;
    // NOWAIT keeps the pid reserved until the stage changes: no signal can reach another process.
    let how = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(program), how).map_err(|error| failed(error.into()))?.is_none() {
        if revivals < MAX_RESTARTS
            && let Some(end) = run_dir.server_process.ended()
        {
            revivals += 1;
            restart_server(run_dir, end);
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    *handler.lock() = Stage::Draining { since: Instant::now() };
    child.wait().map_err(failed)
}

/// Lets the program inherit a descriptor of the directory with the socket for processes that have changed from root to
/// other users. The returned descriptor must stay open until the program has been started.
fn open_to_others(directory: &Path, service: &str, command: &mut Command) -> Outcome<OwnedFd> {
    let open = || -> io::Result<OwnedFd> {
        let opened =
            rustix::fs::open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // A high number, which programs do not use for descriptors of their own.
        let high = fcntl_dupfd_cloexec(&opened, PROGRAMS).or_else(|_| fcntl_dupfd_cloexec(&opened, 3))?;
        fcntl_setfd(&high, FdFlags::empty())?;
        Ok(high)
    };
    let opened = open().map_err(|error| Failure::local("open", directory, &error))?;
    command.env(RUN_SOCKET_VARIABLE, run_socket_value(opened.as_raw_fd(), service));
    Ok(opened)
}

/// Restarts a server that died. The program only waits a little longer.
fn restart_server(run_dir: &mut RunDir, end: ExitStatus) {
    match run_dir.server_process.start() {
        Ok(recovery) => output::note(format_args!(
            "the server died ({end}) and was restarted: {} recovered, nothing lost",
            human::counted(recovery.records, "record")
        )),
        Err(failure) => output::complain(&failure),
    }
}

/// The exit code for an exit status, as shells report it.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
