//! Drained files are placed by the server's topology.

use crate::world::{forebay, well};
use forebay_backend::{Backend, Stripes};
use forebay_model::Name;
use forebay_testkit::until;
use std::path::Path;
use std::process::{Child, Stdio};

struct Up(Child);

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server whose back end has four targets; one is excluded, another is on a server of low capacity.
const TOPOLOGY: &str = "
[[server]]
name = 'fast'
capacity = 8.0
[[server]]
name = 'slow'
capacity = 1.0
[[target]]
name = 't0'
server = 'fast'
[[target]]
name = 't1'
server = 'fast'
[[target]]
name = 't2'
server = 'slow'
[[target]]
name = 't3'
server = 'slow'
state = 'excluded'
[weights]
server = 0.9
target = 0.1
";

fn started(dir: &Path, topology: &str) -> Up {
    let targets = (0..4).map(|number| dir.join(format!("d{number}")).display().to_string());
    let targets: Vec<String> = targets.inspect(|path| std::fs::create_dir_all(path).expect("one")).collect();
    std::fs::write(dir.join("topology.toml"), topology).expect("a file");
    let settings = format!(
        "[server]\nstore = 'store'\nsocket = 'sock'\ncapacity = '64MiB'\nbackend = 'stripes:{}'\n\
         [server.drain]\ntopology = 'topology.toml'\n",
        targets.join(",")
    );
    std::fs::write(dir.join("forebay.toml"), settings).expect("a file");
    Up(forebay(dir)
        .args(["up", "--disk"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs"))
}

#[test]
fn drain_places_files_by_its_topology() {
    let dir = tempfile::Builder::new().prefix("fbdrained-").tempdir().expect("a directory");
    let up = started(dir.path(), TOPOLOGY);
    let service = format!("unix:{}", dir.path().join("sock").display());
    let ask = |words: &[&str]| {
        let mut command = forebay(dir.path());
        command.args(words).args(["--service", &service]).output().expect("it runs")
    };
    until("the server serves", || ask(&["status"]).status.success());
    std::fs::write(dir.path().join("bytes"), "some bytes").expect("a file");
    for number in 0..9 {
        well(&ask(&["put", "bytes", &format!("/f{number}")]));
    }
    well(&ask(&["drain", "--wait"]));
    drop(up);
    let paths: Vec<String> =
        (0..4).map(|number| dir.path().join(format!("d{number}")).display().to_string()).collect();
    let backend = Stripes::open(paths.iter().map(String::as_str)).expect("a stripe set");
    let mut counts = [0; 4];
    for number in 0..9 {
        let path = [Name::new(format!("f{number}").as_bytes()).expect("a name")];
        let layout = backend.layout(&path).expect("it is there");
        layout.targets.iter().for_each(|&target| counts[target as usize] += 1);
    }
    assert_eq!((counts[0] + counts[1], counts[2], counts[3]), (8, 1, 0), "{counts:?}");
    assert_eq!(counts[0], counts[1], "{counts:?}");
}

#[test]
fn topology_that_does_not_match_the_back_end_is_refused() {
    for (topology, expected) in [
        (format!("{TOPOLOGY}router = 1.0\n"), "topology.toml:21: weights: the weights sum to 2"),
        (
            TOPOLOGY.replace("name = 't3'", "name = 't3'\nindex = 4"),
            "\"t3\" has the number 4, but the back end has 4 targets",
        ),
        (
            TOPOLOGY.replace("server = 'slow'\nstate", "server = 'none'\nstate"),
            "topology.toml:17: target 4: server: there is no server \"none\"",
        ),
    ] {
        let dir = tempfile::Builder::new().prefix("fbdrained-").tempdir().expect("a directory");
        let mut up = started(dir.path(), &topology);
        let mut printed = String::new();
        let mut pipe = up.0.stderr.take().expect("a pipe");
        std::io::Read::read_to_string(&mut pipe, &mut printed).expect("it reports why");
        assert!(
            !up.0.wait().expect("it ends").success() && printed.contains(expected),
            "{topology}: {printed}"
        );
    }
}
