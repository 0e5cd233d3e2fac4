// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command runner simulates the runners of CI platforms on Windows, and Docker. Its own name chooses what it simulates. It
// prints its arguments, the settings that it was given, and the lines that the real program prints for one job, and leaves
// a process behind, as jobs do.
package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	mode := ""
	if len(os.Args) > 1 {
		mode = os.Args[1]
	}

	name := strings.TrimSuffix(strings.ToLower(filepath.Base(os.Args[0])), ".exe")

	switch {
	case mode == "leftover":
		time.Sleep(time.Hour)

		return
	case name == "dockerd":
		runDocker()

		return
	}

	if err := exec.Command(os.Args[0], "leftover").Start(); err != nil { //nolint:noctx // it outlives this process
		fail("start leftover", err)
	}

	args, err := json.Marshal(os.Args[1:])
	if err != nil {
		fail("encode arguments", err)
	}

	fmt.Printf("args %s\r\n", args)

	switch name {
	case "gitlab-runner":
		fmt.Print("token "+os.Getenv("CI_SERVER_TOKEN")+"\r\n",
			"Starting runner for https://gitlab.example with token glrt-x ...\r\n",
			"Checking for jobs... received  job=4711 repo_url=https://gitlab.example/g/p.git\r\nJob succeeded  duration_s=1.5\r\n")
	case "buildkite-agent":
		fmt.Print("token "+os.Getenv("BUILDKITE_AGENT_TOKEN")+" hooks "+os.Getenv("BUILDKITE_HOOKS_PATH")+"\r\n",
			"INFO   Successfully registered agent \"ci-1\" with tags []\r\nINFO   ci-1 Starting job at https://buildkite.example/1\r\n",
			"INFO   ci-1 Finished job at https://buildkite.example/1\r\n")
		os.Exit(3) // the exit code of the job
	case "forgejo-runner":
		printGitea(readURL(os.Args[slices.Index(os.Args, "--token-url")+1]))
	case "act_runner":
		printGitea(readFile(".runner"))
	case "job": // of a pool's own command
		fmt.Print("in ", os.Getenv("WORK_DRIVE"), "\r\n")
	default:
		runGitHub(mode)
	}
}

func fail(what string, err error) {
	fmt.Println(what+":", err)
	os.Exit(1)
}

func readFile(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		fail("read file", err)
	}

	return string(text)
}

// readURL reads the file of a file URL with a drive (RFC 8089).
func readURL(text string) string {
	parsed, err := url.Parse(text)
	if err != nil {
		fail("parse URL", err)
	}

	return readFile(filepath.FromSlash(strings.TrimPrefix(parsed.Path, "/")))
}

func printGitea(settings string) {
	fmt.Print("settings "+settings+"\r\n", "runner: ci-1, with version: v12, with labels: [windows], declared successfully\r\n",
		"task 7 repo is o/p\r\n")
}

// runGitHub runs the runner of GitHub Actions.
func runGitHub(mode string) {
	switch mode {
	case "config": // config.cmd
		text := strings.Join([]string{
			os.Getenv("ACTIONS_RUNNER_INPUT_NAME"), os.Getenv("ACTIONS_RUNNER_INPUT_LABELS"),
			os.Getenv("ACTIONS_RUNNER_INPUT_URL"), os.Getenv("ACTIONS_RUNNER_INPUT_WORK"),
		}, "|")
		if err := os.WriteFile(".runner", []byte(text), 0o600); err != nil {
			fail("save settings", err)
		}

		return
	case "hook": // a job starts, which only the hook says
		_, rest, _ := strings.Cut(readFile(os.Getenv("ACTIONS_RUNNER_HOOK_JOB_STARTED")), "-Path '")
		name, _, _ := strings.Cut(strings.ReplaceAll(rest, "''", "\x00"), "'")

		if err := os.WriteFile(strings.ReplaceAll(name, "\x00", "'"), nil, 0o600); err != nil {
			fail("run hook", err)
		}

		time.Sleep(2 * time.Second)
		os.Exit(9)
	case "run": // after config
		fmt.Print("registered " + readFile(".runner") + "\r\n")
	}

	fmt.Print("2026-01-02 03:04:05Z: Listening for Jobs\r\n2026-01-02 03:04:05Z: Running job: build\r\n")
	fmt.Print("token ", os.Getenv("ACTIONS_RUNNER_INPUT_JITCONFIG"), " in ", os.Getenv("WORK_DRIVE"), "\r\n")
	fmt.Print("f\x81r in code page 437\r\n")

	if err := os.MkdirAll(filepath.Join(os.Getenv("WORK_FOLDER"), strings.Repeat(`long folder name\`, 20)), 0o700); err != nil {
		fail("create long path", err)
	}

	if mode == "hang" {
		time.Sleep(time.Hour)
	}

	fmt.Print("2026-01-02 03:04:05Z: Job build completed with result: Succeeded\r\n")
}
