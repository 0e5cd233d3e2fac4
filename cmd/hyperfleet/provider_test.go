// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance/runner"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/loopback"
)

// readGuideCommand returns the arguments of the command in the guide, with another folder and program.
func readGuideCommand(t *testing.T, folder, program string) []string {
	t.Helper()

	page, err := os.ReadFile("../../docs/guides/write-a-provider.md")
	if err != nil {
		t.Fatal(err)
	}

	_, command, found := strings.Cut(string(page), "\nhyperfleet provider conform ")
	command, _, closed := strings.Cut(command, "\n```")

	if !found || !closed {
		t.Fatal("the guide has no command")
	}

	command = strings.NewReplacer("\\\n", " ", "/tmp", folder, "./provider", program).Replace(command)

	return append([]string{"provider", "conform", "-o", "json"}, strings.Fields(command)...)
}

// The example provider, as a program, passes all cases. The command kills it in the middle of each call.
func TestProviderConform(t *testing.T) {
	t.Parallel()

	folder, program := loopback.SocketFolder(t), exe.Build(t, "hypervisor/example/program")
	address := "unix://" + filepath.Join(folder, "provider.sock")

	var out bytes.Buffer

	err := run(t.Context(), t, nil, &out, nil, readGuideCommand(t, folder, program)...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}

	var got struct {
		Address                 string
		Passed, Failed, Skipped int
		Cases                   []runner.Result
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}

	groups := map[string]int{}

	for _, result := range got.Cases {
		group, _, _ := strings.Cut(result.Name, "/")
		groups[group]++
	}

	t.Logf("%d passed, %d failed, %d skipped: %v", got.Passed, got.Failed, got.Skipped, groups)

	if got.Address != address || got.Failed != 0 || got.Passed+got.Skipped != len(got.Cases) ||
		groups["cases"] < 29 || groups["the operator crashes"] < 30 || groups["the program crashes"] < 12 {
		t.Errorf("want all cases, got %v", groups)
	}
}

func TestProviderConformFails(t *testing.T) { //nolint:tparallel // one program at the address at a time
	t.Parallel()

	folder, program := loopback.SocketFolder(t), exe.Build(t, "hypervisor/example/program")
	address := "unix://" + filepath.Join(folder, "s")
	serve := []string{"--", program, "-address", address, "-state", folder}

	for name, c := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no address":      {args: nil, code: cli.ExitUsage, want: "give one address"},
		"two addresses":   {args: []string{address, address}, code: cli.ExitUsage, want: "give one address"},
		"no certificate":  {args: []string{"127.0.0.1:1", "--ca", "/missing"}, code: cli.ExitUsage, want: "set --client-cert and --client-key"},
		"no key":          {args: []string{"127.0.0.1:1", "--client-cert", "/missing"}, code: cli.ExitUsage, want: "set --client-cert and --client-key"},
		"file is missing": {args: []string{"127.0.0.1:1", "--client-cert", "/missing", "--client-key", "/missing"}, code: cli.ExitUsage, want: "read --client-cert"},
		"nobody listens":  {args: []string{"unix://" + folder + "/none"}, code: cli.ExitFailed, want: "none"},
		"program ends":    {args: []string{address, "--", program, "-no-such-flag"}, code: cli.ExitFailed, want: "flag provided but not defined"},
		"only a provider": {args: append([]string{address}, serve...), code: cli.ExitFailed, want: "does not serve the service"},
		"no case": {
			args: append(append([]string{address, "--run", "nothing"}, serve...), "-conformance"), code: cli.ExitFailed, want: "0 passed",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer

			err := run(t.Context(), t, nil, &out, nil, append([]string{"provider", "conform"}, c.args...)...)
			if err == nil {
				t.Fatal("want an error")
			}

			if code := cli.ExitCode(err); code != c.code || !strings.Contains(err.Error()+out.String(), c.want) {
				t.Errorf("want code %d and %q, got %d and %q", c.code, c.want, code, err.Error()+out.String())
			}
		})
	}
}

// If another program listens at the address, the command would test that one, and kill its own, which has ended already.
func TestProviderConformOfAnotherProgram(t *testing.T) {
	t.Parallel()

	folder, program := loopback.SocketFolder(t), exe.Build(t, "hypervisor/example/program")
	address := "unix://" + filepath.Join(folder, "s")

	other, err := procrun.Start(t.Context(), procrun.Spec{
		Path: program, Args: []string{"-address", address, "-state", folder, "-conformance"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Kill()

	waitFor := func(ctx context.Context) error {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(folder, "s"))
		if err == nil {
			err = conn.Close()
		}

		return err
	}
	if err := other.WaitReady(t.Context(), waitFor); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer

	err = run(t.Context(), t, nil, &out, nil, "provider", "conform", address, "--run", "cases/reserve", "--", "sleep", "60")
	if err == nil || !strings.Contains(err.Error(), "another program listens") {
		t.Errorf("want an error about the other program, got %v\n%s", err, out.String())
	}

	select {
	case <-other.Done():
		t.Error("the command has ended the other program")
	default:
	}
}
