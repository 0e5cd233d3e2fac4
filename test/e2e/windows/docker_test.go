// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bufio"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

// The service adds registry mirrors to Docker's configuration, and makes a Docker that is starting reload it.
func TestDockerOnWindows(t *testing.T) { //nolint:paralleltest // the tests share one Windows installation
	w := newWine(t)
	service := w.build("../../../cmd/bootstrap-service", "bootstrap-service.exe")

	program, err := os.ReadFile(w.build("./runner", "runner.exe"))
	if err != nil {
		t.Fatal(err)
	}

	const name = "docker"

	root := filepath.Join(w.drive(), name)
	w.installRunner(root, windowsCase{script: "@echo off\r\n\"%~dp0runner.exe\"\r\n"}, program)

	file := filepath.Join(root, "ProgramData", "docker", "config", "daemon.json")
	w.write(file, []byte("\ufeff{\"registry-mirrors\": [\"https://old.example.com\"], \"group\": \"docker\"}"))
	w.write(filepath.Join(root, "dockerd.exe"), program)

	docker := w.command(t.Context(), `C:\`+name+`\dockerd.exe`, `C:\`+name+`\ProgramData\docker\config\daemon.json`)

	out, err := docker.StdoutPipe()
	if err == nil {
		err = docker.Start()
	}

	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = docker.Wait() }) // it ends after the reload, or with the Windows installation

	lines := bufio.NewScanner(out)
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), "starting") {
		t.Fatalf("the simulated Docker did not start: %q", lines.Text())
	}

	config := newConfig(newReports(t).URL, name)
	config.Cache = &api.Cache{RegistryMirrors: []string{"https://mirror.example.com"}}

	data, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}

	w.write(filepath.Join(root, "etc", "hyperfleet", "runner-config.json"), data)

	log, err := w.command(t.Context(), service, "--root", `C:\`+name).CombinedOutput()
	if err != nil || strings.Contains(string(log), "mirrors are not used") {
		t.Errorf("the service ended with %v\n%s", err, log)
	}

	reloaded := lines.Scan() && strings.HasPrefix(lines.Text(), "reloaded")
	if !reloaded {
		t.Errorf("Docker was not reloaded: %q\n%s", lines.Text(), log)
	}

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	var got struct {
		Mirrors []string `json:"registry-mirrors"`
		Group   string   `json:"group"`
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Group != "docker" ||
		strings.Join(got.Mirrors, " ") != "https://mirror.example.com https://old.example.com" {
		t.Errorf("Docker's configuration is %s (%v)", text, err)
	}
}
