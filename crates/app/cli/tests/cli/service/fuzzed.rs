//! What the collector says of its API holds whatever is sent: Schemathesis reads the document that
//! the server serves, and sends what it allows and what it does not.

#![expect(clippy::print_stdout, reason = "a test says what it skips")]

use super::*;

/// Requests of each kind and address: some minutes with thousands, for which it is set.
fn examples() -> String {
    std::env::var("LAGGARD_TEST_REQUESTS").unwrap_or_else(|_| "10".to_owned())
}

/// Runs it; `None`, with a line, where it is not there.
fn fuzz(server: &Server, folder: &Path, token: Option<&str>) -> Option<String> {
    let config = folder.join("schemathesis.toml");
    // A job that is there and runs.
    fs::write(&config, "[parameters]\n\"path.job\" = \"job\"\n").expect("a file");
    let mut command = Command::new("schemathesis");
    command.arg("--config-file").arg(&config).arg("run");
    command.arg(format!("{}/api/v1/openapi.json", server.url));
    command.args(["--checks", "all", "--phases", "examples,coverage,fuzzing"]);
    command.args(["--seed", "1", "--max-examples", &examples(), "--no-color"]);
    command.args(["--generation-database", "none", "--request-timeout", "30"]);
    // A stream of events never ends. Batches are not JSON; a fuzz target of their own reads them.
    for path in ["events", "batches/{sequence}"] {
        command.args([
            "--exclude-path-regex",
            &format!("{}$", path.replace('{', "\\{")),
        ]);
    }
    if let Some(token) = token {
        command.args(["--header", &format!("Authorization: Bearer {token}")]);
    }
    let Ok(output) = command.current_dir(folder).output() else {
        println!("not fuzzed: there is no schemathesis (make api)");
        return None;
    };
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    assert!(output.status.success(), "{printed}");
    let cases = printed.lines().find(|line| line.contains(" generated"));
    println!("schemathesis: {}", cases.unwrap_or_default().trim());
    Some(printed)
}

#[test]
fn a_fuzzer_of_the_api_finds_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&folder.path().join("open"), &[]);
    server.post(&place(0), &batches(2)[0]).expect("an answer");
    if fuzz(&server, folder.path(), None).is_none() {
        return;
    }
    // It is the collector that answered all this.
    server.json("/api/v1/jobs/job/verdict");
    let tokens = folder.path().join("tokens.toml");
    fs::write(&tokens, "admin = \"admin-admin-admin\"\n").expect("a file");
    let more = ["--tokens", tokens.to_str().expect("UTF-8")];
    let server = Server::start(&folder.path().join("closed"), &more);
    let url = format!("{}/api/v1/jobs/{}", server.url, place(0));
    let request = http().post(url).header("laggard-now-ns", "1000");
    let request = request.header("authorization", "Bearer admin-admin-admin");
    assert_eq!(
        read(request.send(&batches(2)[0]).expect("an answer")).0,
        200
    );
    fuzz(&server, folder.path(), Some("admin-admin-admin"));
    let (status, _) = server.get("/api/v1/jobs/job/verdict", Some("admin-admin-admin"));
    assert_eq!(status, 200);
}
