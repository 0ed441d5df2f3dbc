//! The `forebay` binary: starts and stops servers, copies data in and out, reports the state of a service.
//!
//! ```text
//! up, detach, signals     start a server in the foreground or in the background
//! down                    stop servers
//! control                 status, df
//! transfer                put, get, cat
//! names, edit             ls, stat, du; rm, mv, mkdir, ln
//! drain, stage            copy data to and from the back end
//! run, server_process     run a program with a buffer of its own, then drain it
//! exec, library, intercept   run unmodified programs with the preload library embedded in this binary
//! mount                   mount the service as a directory
//! store, check            inspect stores without a server; check and repair a service
//! layout, servers         stripe layouts; replace the store of a server
//! grant                   keys of users for TCP
//! jobs, policy, shares    running jobs, the sharing policy, the shares that a policy would give
//! bench                   measure throughput and fairness
//! calibrate               measure the best number of writers for each storage target
//! plan, route, place      size the buffer; predict which writes bypass it; choose the targets of files
//! sim, reproduce          simulate a machine in virtual time; reproduce the figures of the papers
//! demo                    a demonstration with a server crash in the middle
//! reference               the book's reference and man pages, generated
//! settings, places, connect   forebay.toml, default paths, connecting to the service
//! view, output            formatting of results; the only module that prints
//! ```
//!
//! **Invariant**: the exit code is 0 (success), 1 (failure), 2 (usage error), 3 (the checked object is faulty), 4 (some
//! servers do not answer), 126 or 127 (a program cannot be run), 130 (interrupted), or the code of the program that
//! `run` runs. An error is one line on standard error that names what failed, on which object, and what to do (three
//! lines where it points at a word of a policy). No panic reaches the user.
//!
//! **Deliberately absent**: anything that a library could do. This crate handles the command line and leaves everything
//! else to `forebay-client`, `forebay-server` and `forebay-store`.

#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod check;
mod completions;
mod connect;
mod control;
mod demo;
mod detach;
mod down;
mod drain;
mod edit;
mod exec;
mod failure;
mod grant;
mod intercept;
mod jobs;
mod layout;
mod library;
mod mount;
mod names;
mod output;
mod place;
mod places;
mod plan;
mod policy;
mod reference;
mod remote;
mod reproduce;
mod route;
mod run;
mod server_process;
mod settings;
mod shard;
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
use forebay_report::{human, keys};
use std::process::ExitCode;

/// A burst buffer: absorbs writes at memory speed, keeps them safe, and drains them to the back end.
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
    /// Stop the service, in order, on all its hosts
    Down(down::Down),
    /// Show what the server is doing
    Status(control::Status),
    /// Show the jobs that share the service
    Jobs(jobs::Jobs),
    /// Show or set how the service is shared
    #[command(subcommand)]
    Policy(policy::Command),
    /// Show what share a policy would give each job
    Shares(shares::Shares),
    /// Copy local files into the buffer
    Put(transfer::Put),
    /// Copy files out of the buffer
    Get(transfer::Get),
    /// Write files to standard output
    Cat(transfer::Cat),
    /// List directories
    Ls(names::Ls),
    /// Show the attributes of files
    Stat(names::Stat),
    /// Remove files and directories
    Rm(edit::Rm),
    /// Move or rename files and directories
    Mv(edit::Mv),
    /// Create directories
    Mkdir(edit::Mkdir),
    /// Create links
    Ln(edit::Ln),
    /// Show how full the buffer is
    Df(control::Df),
    /// Drain written data to the back end
    Drain(drain::Drain),
    /// Copy files between the buffer and the back end
    #[command(subcommand)]
    Stage(stage::Stage),
    /// Show how much space directories use
    Du(names::Du),
    /// Run a program with a buffer of its own, then drain its files
    Run(run::Run),
    /// Run a program that sees Forebay's files under /fb
    Exec(exec::Exec),
    /// Print the path of the preload library, or its C header
    Library(exec::Library),
    /// Mount the service at a directory
    Mount(mount::Mount),
    /// Unmount the service
    Umount(mount::Umount),
    /// Show or set how files are striped over servers
    #[command(subcommand)]
    Layout(layout::Layout),
    /// Let a shard that lost its store join again
    #[command(subcommand)]
    Shard(shard::Shard),
    #[command(hide = true)]
    Server(shard::Retired),
    /// Grant, show and revoke keys for users who connect over TCP
    #[command(subcommand)]
    Key(grant::Command),
    /// Check and repair a running service, or the stores of a stopped one
    Check(check::Check),
    /// Inspect a store, discard its lost data, or remove it
    #[command(subcommand)]
    Store(store::Store),
    /// Compute how large the buffer must be, and when it should drain
    Plan(Box<plan::PlanArgs>),
    /// Show which storage targets a job's files would use
    Place(place::Place),
    /// Simulate a scenario in virtual time: jobs, servers, drains, targets, failures
    Sim(sim::Sim),
    /// Reproduce the figures of the papers and compare the numbers
    Reproduce(reproduce::Reproduce),
    /// Measure the best number of concurrent writers for each storage target
    Calibrate(calibrate::Calibrate),
    /// Show which writes of a trace would be buffered, and which would go directly to the back end
    Route(route::Route),
    /// Demonstrate Forebay: jobs write, the server is killed and restarted, every byte is verified
    Demo(demo::Demo),
    /// Measure how fast Forebay is, and how fairly it is shared
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Print completions for a shell
    Completions(completions::Completions),
    /// Print the reference of commands and settings, or write man pages
    #[command(hide = true, subcommand)]
    Reference(reference::Reference),
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
        Command::Shard(shard) => shard.run(),
        Command::Server(retired) => retired.run(),
        Command::Key(key) => key.run(),
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
        Command::Reference(reference) => reference.run(),
        Command::BenchJob(job) => job.run(),
        Command::BenchFar(far) => far.run(),
        Command::BenchPlaces(places) => places.run(),
        Command::BenchStep(step) => step.run(),
        Command::DemoJob(job) => job.run(),
    }
}

/// A metadata request allocates and frees dozens of small objects, on any thread.
#[global_allocator]
static MEMORY: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    std::panic::set_hook(Box::new(output::report_panic));
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
        // The panic hook has printed the message.
        Err(_) => ExitCode::FAILURE,
    }
}
