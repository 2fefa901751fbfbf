//! The examples to deploy with are what the programs they are for take.

#![expect(clippy::print_stdout, reason = "a test says what it skips")]

use super::*;

/// The examples to deploy with.
fn deployed(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    fs::read_to_string(folder.join(name)).expect(name)
}

#[test]
fn rules_and_dashboard_ask_for_metrics_that_are_served() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    server.post(&place(0), &batches(2)[0]).expect("an answer");
    // One that is refused: a counter of none is not listed.
    assert_eq!(
        server.post(&place(5), &batches(2)[1]).expect("an answer").0,
        409
    );
    let (_, metrics) = server.get("/metrics", None);
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let known: Vec<&str> = samples
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    for name in ["alerts.yml", "grafana.json"] {
        let text = deployed(name);
        let word = |letter: char| !(letter.is_ascii_lowercase() || letter == '_');
        let asked = text.split(word).filter(|word| word.starts_with("laggard_"));
        let asked: Vec<&str> = asked.collect();
        assert!(asked.len() > 5, "{name}");
        for metric in asked {
            assert!(
                known.contains(&metric),
                "{name} asks for {metric}:\n{metrics}"
            );
        }
    }
}

#[test]
fn examples_to_deploy_are_well_formed() {
    use serde::Deserialize;
    for (name, kinds) in [
        ("prometheus.yml", vec![""]),
        ("alerts.yml", vec![""]),
        (
            "kubernetes.yaml",
            vec!["StatefulSet", "Service", "Service", "Job"],
        ),
    ] {
        let text = deployed(name);
        let documents = yaml_serde::Deserializer::from_str(&text);
        let documents = documents.map(|one| Value::deserialize(one).expect(name));
        let found: Vec<Value> = documents.collect();
        let found: Vec<&str> = found
            .iter()
            .map(|one| one["kind"].as_str().unwrap_or_default())
            .collect();
        assert_eq!(found, kinds, "{name}");
    }
    let rules: Value = yaml_serde::from_str(&deployed("alerts.yml")).expect("YAML");
    for rule in rules["groups"][0]["rules"].as_array().expect("rules") {
        let has = |key: &str| rule[key].is_string();
        let said = |key: &str| rule["annotations"][key].is_string();
        assert!(has("alert") && has("expr") && said("summary") && said("description"));
    }
    let board: Value = serde_json::from_str(&deployed("grafana.json")).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let places = |panel: &Value| {
        let at = |key: &str| panel["gridPos"][key].as_u64().expect("a place");
        let (x, y, w, h) = (at("x"), at("y"), at("w"), at("h"));
        (x..x + w)
            .flat_map(move |x| (y..y + h).map(move |y| (x, y)))
            .collect::<Vec<_>>()
    };
    let mut places: Vec<_> = panels.iter().flat_map(places).collect();
    let count = places.len();
    places.sort_unstable();
    places.dedup();
    assert_eq!(places.len(), count, "panels lie on each other");
    let mut shell = Command::new("bash");
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../deploy/slurm.sh");
    assert!(
        shell
            .arg("-n")
            .arg(script)
            .status()
            .expect("bash runs")
            .success()
    );
}

/// Runs a program of somebody else's if it is there.
fn checked(program: &str, arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let Ok(mut child) = command.stderr(Stdio::piped()).spawn() else {
        println!("not checked: there is no {program}");
        return None;
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(input.as_bytes()).expect("it reads");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let printed = [output.stdout, output.stderr].concat();
    Some((
        output.status.success(),
        String::from_utf8_lossy(&printed).into_owned(),
    ))
}

fn deploy_folder() -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../deploy");
    folder
        .canonicalize()
        .expect("it is there")
        .display()
        .to_string()
}

#[test]
fn prometheus_takes_metrics_rules_and_its_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path(), &[]);
    for (at, batch) in batches(2).iter().enumerate() {
        server.post(&place(at), batch).expect("an answer");
        server.post(&place(at + 5), batch).expect("an answer");
        let request = http().get(format!("{}/metrics", server.url));
        let openmetrics = request.header("accept", "application/openmetrics-text");
        let (_, openmetrics) = read(openmetrics.call().expect("an answer"));
        assert!(openmetrics.ends_with("# EOF\n"), "{openmetrics}");
        let (_, classic) = server.get("/metrics", None);
        // What it says of names and units too is an error here: it says nothing.
        let check = checked("promtool", &["check", "metrics"], &classic);
        let Some((is_right, printed)) = check else {
            return;
        };
        assert!(is_right && printed.is_empty(), "{printed}\n{classic}");
    }
    let deploy = deploy_folder();
    for arguments in [
        ["check", "rules", "alerts.yml"],
        ["test", "rules", "alerts.test.yml"],
        ["check", "config", "--syntax-only"],
    ] {
        let mut command = Command::new("promtool");
        command.current_dir(&deploy).args(arguments);
        if arguments[1] == "config" {
            command.arg("prometheus.yml");
        }
        let output = command.output().expect("it was there before");
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed);
        assert!(output.status.success(), "{arguments:?}: {printed}");
    }
}

#[test]
fn systemd_takes_the_services() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["laggard.service", "laggard-agent@.service"] {
        // It looks whether the program is there.
        let here = env!("CARGO_BIN_EXE_laggard");
        let unit = deployed(name).replace("/usr/local/bin/laggard", here);
        let path = folder.path().join(name.replace("@.", "@alice."));
        fs::write(&path, unit).expect("a file");
        let path = path.to_str().expect("UTF-8");
        let verify = ["verify", "--man=no", "--recursive-errors=no", path];
        let Some((is_right, printed)) = checked("systemd-analyze", &verify, "") else {
            return;
        };
        assert!(is_right && printed.is_empty(), "{name}: {printed}");
    }
}

#[test]
fn kubernetes_takes_the_objects() {
    let manifest = format!("{}/kubernetes.yaml", deploy_folder());
    let validate = ["--strict", manifest.as_str()];
    let Some((is_right, printed)) = checked("kubernetes-validate", &validate, "") else {
        return;
    };
    assert!(is_right, "{printed}");
}
