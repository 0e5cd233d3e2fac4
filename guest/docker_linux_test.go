// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest_test

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	api "github.com/hyperfleet/hyperfleet/api/guest"
)

// A running Docker daemon gets a signal to reload its mirrors.
func TestRunningDockerReloadsMirrors(t *testing.T) {
	t.Parallel()

	// A shell cannot trap a signal that is ignored when it starts, for example under nohup. Notify makes sure
	// that SIGHUP is not ignored.
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	t.Cleanup(func() { signal.Stop(hangUp) })

	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)

	docker := exec.CommandContext(ctx, "sh", "-c", "trap 'echo reloaded; exit' HUP; echo up; while :; do sleep 0.05; done")

	out, err := docker.StdoutPipe()
	if err == nil {
		err = docker.Start()
	}

	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() { _ = docker.Process.Kill(); _ = docker.Wait() })

	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "up" {
		t.Fatal("the simulated Docker did not start")
	}

	m := newMachine(t)
	m.cfg.Cache = &api.Cache{RegistryMirrors: []string{"http://10.20.0.5:5000"}}
	m.write(t, "/run/docker.pid", strconv.Itoa(docker.Process.Pid))
	m.write(t, runScript, printListening+printRunning+printCompleted)
	m.waitForEnd(t, m.start(t, t.Context()))

	if !lines.Scan() || lines.Text() != "reloaded" {
		t.Errorf("Docker was not reloaded:\n%s", m.log.String())
	}
}
