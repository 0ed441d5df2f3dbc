//! The one binary: starts and stops servers, moves data in and out, shows what is there.
//!
//! ```text
//! up, detach, signals     a server in the foreground or in the background
//! control                 down, status, df
//! transfer                put, get, cat
//! names, edit             ls, stat, du; rm, mv, mkdir, ln
//! drain                   what leaves for the back end
//! run, keeper             a program with a buffer of its own, brought out at the end
//! exec, library           unmodified programs, with the library that travels in this binary
//! mount                   the service as a directory
//! store, check            stores on disk, without a server
//! layout, servers         how files lie on servers; a server that comes with a new store
//! jobs, policy, shares    who shares the service, by which policy, and what would follow from one
//! bench                   how fast it is and how fairly it is shared, measured
//! calibrate               how many writers the targets behind like
//! plan, route, place      how large the buffer must be; what would go past it; over which targets files lie
//! sim, reproduce          a machine in virtual time; the papers' figures made with it
//! draw                    pictures
//! demo                    everything at once, with a crash in the middle
//! settings, places, connect   forebay.toml, default paths, the way to the service
//! view, output            what is shown, and the only place that prints
//! ```
//!
//! **Invariant**: exit code 0, 1 (it failed) or 2 (it was called wrongly), 130 where somebody interrupted it, and
//! those of the program that `run` runs; an error is one line on standard error that
//! says what failed, on what, and what to do (three where it points at a word of a policy); no panic reaches the user.
//!
//! **Deliberately absent**: whatever a library could do: this crate talks to people, and everything else to
//! `forebay-client`, `forebay-server` and `forebay-store`.

#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod check;
mod completions;
mod connect;
mod control;
mod demo;
mod detach;
mod drain;
mod draw;
mod edit;
mod exec;
mod failure;
mod human;
mod jobs;
mod keeper;
mod keys;
mod layout;
mod library;
mod mount;
mod names;
mod output;
mod place;
mod places;
mod plan;
mod policy;
mod remote;
mod reproduce;
mod route;
mod run;
mod servers;
mod settings;
mod shares;
mod signals;
mod sim;
mod stage;
mod store;
mod transfer;
mod up;
mod usage;
mod view;

use clap::{Parser, Subcommand};
use failure::Outcome;
use std::process::ExitCode;

/// A burst buffer: takes data at memory speed, loses nothing, hands it on in good order.
#[derive(Parser)]
#[command(name = "forebay", version, max_term_width = 100, subcommand_required = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a server
    Up(up::Up),
    /// Stop the server, in order
    Down(control::Down),
    /// Show what the server is doing
    Status(control::Status),
    /// Show the jobs that share the service
    Jobs(jobs::Jobs),
    /// Show or set how the service is shared
    #[command(subcommand)]
    Policy(policy::Command),
    /// Say what a policy would give each job
    Shares(shares::Shares),
    /// Copy local files into the buffer
    Put(transfer::Put),
    /// Copy files out of the buffer
    Get(transfer::Get),
    /// Write files to standard output
    Cat(transfer::Cat),
    /// List directories
    Ls(names::Ls),
    /// Show what is known about files
    Stat(names::Stat),
    /// Remove files and directories
    Rm(edit::Rm),
    /// Move or rename files and directories
    Mv(edit::Mv),
    /// Make directories
    Mkdir(edit::Mkdir),
    /// Make links
    Ln(edit::Ln),
    /// Show how full the buffer is
    Df(control::Df),
    /// Bring what was written to the back end
    Drain(drain::Drain),
    /// Bring files out
    #[command(subcommand)]
    Stage(stage::Stage),
    /// Show how much directories hold
    Du(names::Du),
    /// Run a program with a buffer of its own, then bring its files out
    Run(run::Run),
    /// Run a program that finds Forebay's files under /fb
    Exec(exec::Exec),
    /// Say where the library for programs is, or print its C header
    Library(exec::Library),
    /// Mount the service at a directory
    Mount(mount::Mount),
    /// Unmount it
    Umount(mount::Umount),
    /// Show or set how files are laid out over servers
    #[command(subcommand)]
    Layout(layout::Layout),
    /// Let a server join that has lost its store
    #[command(subcommand)]
    Server(servers::Server),
    /// Check the stores of a service that is not running
    Check(check::Check),
    /// Look at a store, give up its lost bytes, remove it
    #[command(subcommand)]
    Store(store::Store),
    /// Say how large the buffer must be, and when it should empty
    Plan(Box<plan::PlanArgs>),
    /// Say over which targets a job's files would lie
    Place(place::Place),
    /// Play a scenario in virtual time: jobs, servers, drains, targets, failures
    Sim(sim::Sim),
    /// Make the papers' figures anew, beside the papers' numbers
    Reproduce(reproduce::Reproduce),
    /// Measure how many writers the storage targets of a back end like best
    Calibrate(calibrate::Calibrate),
    /// Say which writes of a trace would be buffered, and which would go straight to the storage behind
    Route(route::Route),
    /// See it work: jobs write, the server is killed and restarted, every byte is verified
    Demo(demo::Demo),
    /// Measure how fast Forebay is, and how fairly it is shared
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Print completions for a shell
    Completions(completions::Completions),
    #[command(hide = true)]
    DemoJob(demo::DemoJob),
    #[command(hide = true)]
    BenchJob(bench::BenchJob),
    #[command(hide = true)]
    BenchFar(bench::Far),
    #[command(hide = true)]
    BenchPlaces(bench::Places),
    #[command(hide = true, subcommand)]
    BenchStep(bench::Steps),
}

fn run(command: Command) -> Outcome {
    match command {
        Command::Up(up) => up.run(),
        Command::Down(down) => down.run(),
        Command::Status(status) => status.run(),
        Command::Jobs(jobs) => jobs.run(),
        Command::Policy(policy) => policy.run(),
        Command::Shares(shares) => shares.run(),
        Command::Put(put) => put.run(),
        Command::Get(get) => get.run(),
        Command::Cat(cat) => cat.run(),
        Command::Ls(ls) => ls.run(),
        Command::Stat(stat) => stat.run(),
        Command::Rm(rm) => rm.run(),
        Command::Mv(mv) => mv.run(),
        Command::Mkdir(mkdir) => mkdir.run(),
        Command::Ln(ln) => ln.run(),
        Command::Df(df) => df.run(),
        Command::Du(du) => du.run(),
        Command::Drain(drain) => drain.run(),
        Command::Stage(stage) => stage.run(),
        Command::Run(run) => run.run(),
        Command::Exec(exec) => exec.run(),
        Command::Library(library) => library.run(),
        Command::Mount(mount) => mount.run(),
        Command::Umount(umount) => umount.run(),
        Command::Layout(layout) => layout.run(),
        Command::Server(server) => server.run(),
        Command::Check(check) => check.run(),
        Command::Store(store) => store.run(),
        Command::Plan(args) => plan::run(&args),
        Command::Place(place) => place.run(),
        Command::Sim(sim) => sim.run(),
        Command::Reproduce(reproduce) => reproduce.run(),
        Command::Calibrate(calibrate) => calibrate.run(),
        Command::Route(route) => route.run(),
        Command::Demo(demo) => demo.run(),
        Command::Completions(completions) => completions.run(),
        Command::Bench(bench) => bench.run(),
        Command::BenchJob(job) => job.run(),
        Command::BenchFar(far) => far.run(),
        Command::BenchPlaces(places) => places.run(),
        Command::BenchStep(step) => step.run(),
        Command::DemoJob(job) => job.run(),
    }
}

/// A request for a name takes and gives back dozens of small pieces of memory, on whichever thread.
#[global_allocator]
static MEMORY: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(output::confess));
    let outcome =
        std::panic::catch_unwind(|| match Cli::try_parse_from(mount::arguments(std::env::args_os())) {
            Ok(cli) => run(cli.command),
            Err(error) => usage::explain(&error),
        });
    match outcome {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(failure)) => {
            output::complain(&failure);
            failure.code()
        }
        // The hook has said it.
        Err(_) => ExitCode::FAILURE,
    }
}
