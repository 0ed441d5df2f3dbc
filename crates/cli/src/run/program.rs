//! The program: started with the library in it, told of signals, waited for.

use super::berth::Berth;
use crate::failure::{Failure, Outcome};
use crate::{output, signals};
use forebay_client::COUNTS_VARIABLE;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What signals mean at the moment.
enum Stage {
    /// They are the program's; so many have come.
    Running { program: Pid, heard: u32 },
    /// They end the copying.
    Copying,
}

/// Hears signals for as long as the process lives.
#[derive(Clone)]
pub(super) struct Ears {
    stage: Arc<Mutex<Stage>>,
    stop: Arc<AtomicBool>,
}

impl Ears {
    /// Signals end what is done here, until a program runs.
    pub(super) fn open() -> Outcome<Ears> {
        let ears = Ears { stage: Arc::new(Mutex::new(Stage::Copying)), stop: Arc::default() };
        let heard = ears.clone();
        signals::on_signal(move |signal| heard.hear(signal))?;
        Ok(ears)
    }

    /// Whether copying is to end.
    pub(super) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, signal: Signal) {
        match &mut *self.lock() {
            Stage::Copying => self.stop.store(true, Ordering::Relaxed),
            Stage::Running { program, heard } => {
                *heard += 1;
                let passed_on = match *heard {
                    1 if signal == Signal::INT && is_in_front() => None,
                    1 => Some(signal),
                    2 => Some(Signal::TERM),
                    _ => Some(Signal::KILL),
                };
                output::note(format_args!("waiting for the program to end; its data is brought out then"));
                if let Some(signal) = passed_on {
                    // It may have ended just now.
                    let _ = kill_process(*program, signal);
                }
            }
        }
    }
}

/// Whether a terminal sends Ctrl-C to the program too.
fn is_in_front() -> bool {
    let terminal = std::fs::File::open("/dev/tty");
    let front = terminal.ok().and_then(|terminal| rustix::termios::tcgetpgrp(terminal).ok());
    front == Some(rustix::process::getpgrp())
}

/// Runs the program to its end.
pub(super) fn run(ears: &Ears, berth: &Berth, prefix: &Path, words: &[OsString]) -> Outcome<ExitStatus> {
    let this = std::env::current_exe()
        .map_err(|error| Failure::Failed(format!("cannot find this program: {error}")))?;
    // By way of `exec`, which sees to it that the program does not outlive this process and its server.
    let mut command = Command::new(&this);
    command.args(["exec", "--with-parent", "--config", "/dev/null"]).arg("--service");
    command.arg(berth.keeper.service()).arg("--prefix").arg(prefix).arg("--").args(words);
    command.env(COUNTS_VARIABLE, berth.counts_file());
    let mut stage = ears.lock();
    let mut child = command.spawn().map_err(|error| Failure::local("start", &this, &error))?;
    let program = Pid::from_child(&child);
    *stage = Stage::Running { program, heard: 0 };
    drop(stage);
    let failed = |error: std::io::Error| Failure::Failed(format!("cannot wait for the program: {error}"));
    // Its number stays its own until it is known here that it has ended: no signal goes to anybody else.
    while let Err(error) = waitid(WaitId::Pid(program), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT) {
        if error != rustix::io::Errno::INTR {
            return Err(failed(error.into()));
        }
    }
    *ears.lock() = Stage::Copying;
    child.wait().map_err(failed)
}

/// The exit code that stands for how a program ended.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(u8::MAX)
}
