//! forebay.toml.

use crate::support::{World, run};

#[test]
fn forebay_toml_of_the_directory_is_used_by_servers_and_clients() {
    let mut world = World::empty();
    let socket = world.path("s2");
    let text = format!("[client]\nservice = \"unix:{}\"\n\n[server]\nroot_mode = 0o755\n", socket.display());
    world.write("forebay.toml", text);
    world.start_at("s2", &[]);
    let mut command = world.command(&["stat", "/", "--json"]);
    command.env_remove("FOREBAY_SERVICE");
    assert!(run(command).well().out.contains("\"mode\": \"0755\""));
    // The environment overrides the file, an option overrides both.
    world.run(&["ls"]).failed(1, &["/sock: no such file"]);
    world.well(&["ls", "--service", &format!("unix:{}", socket.display())]);
}

#[test]
fn settings_errors_name_file_line_and_key() {
    let world = World::empty();
    for (text, parts) in [
        ("[server]\ncapacity = \"1GiB\"\n\nmemry = true\n", &["bad.toml line 4: unknown key `memry`"][..]),
        ("[server]\ncapacity = \"lots\"\n", &["bad.toml line 2: ", "\"lots\" is not a size"]),
        ("[sevrer]\n", &["bad.toml line 1: unknown key `sevrer`"]),
        ("[server.times]\nsession = \"long\"\n", &["bad.toml line 2: "]),
    ] {
        world.write("bad.toml", text);
        for command in [&["ls", "--config", "bad.toml"][..], &["up", "--config", "bad.toml"]] {
            world.run(command).failed(2, parts);
        }
    }
    world.run(&["ls", "--config", "none.toml"]).failed(1, &["cannot read none.toml", "check the path"]);
}
