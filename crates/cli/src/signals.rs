//! Signals that stop the process.

use crate::failure::{Failure, Outcome};
use rustix::process::Signal;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

/// Calls `act` on every SIGINT, SIGTERM and SIGHUP from now on.
pub(crate) fn on_stop(mut act: impl FnMut() + Send + 'static) -> Outcome {
    on_signal(move |_| act())
}

/// Like [`on_stop`], and passes the signal.
pub(crate) fn on_signal(mut act: impl FnMut(Signal) + Send + 'static) -> Outcome {
    let failed =
        |error: std::io::Error| Failure::Failed(format!("cannot install the signal handler: {error}"));
    let runtime = Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let within = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(failed)?;
    drop(within);
    let listen = move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => act(Signal::INT),
                    _ = terminate.recv() => act(Signal::TERM),
                    _ = hangup.recv() => act(Signal::HUP),
                }
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(failed)?;
    Ok(())
}
