// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/root"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/version"
	"github.com/hyperfleet/hyperfleet/test/defaults"
	"github.com/hyperfleet/hyperfleet/test/spelling"
)

func TestExitCode(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		err  error
		code int
		text string
	}{
		"nothing wrong":        {err: nil},
		"any error":            {err: fs.ErrNotExist, code: 1, text: "file does not exist"},
		"a command line":       {err: fmt.Errorf("jobs: %w", cli.Usagef("unknown output %q", "xml")), code: 2, text: `jobs: unknown output "xml"`},
		"already printed":      {err: cli.Failed(), code: 1, text: ""},
		"a code of its own":    {err: errors.Join(cli.WithCode(fs.ErrClosed, 130), fs.ErrExist), code: 130, text: "file already closed\nfile already exists"},
		"the first code holds": {err: cli.WithCode(cli.Usage(fs.ErrClosed), 4), code: 4, text: "file already closed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if code := cli.ExitCode(tc.err); code != tc.code {
				t.Errorf("ExitCode(%v) = %d, want %d", tc.err, code, tc.code)
			}

			if tc.err != nil && tc.err.Error() != tc.text {
				t.Errorf("its text is %q, want %q", tc.err, tc.text)
			}
		})
	}

	if !errors.Is(cli.Usage(fs.ErrClosed), fs.ErrClosed) {
		t.Error("an error with a code is another error")
	}
}

// TestMistyped checks that a mistyped flag or command is a usage error that suggests the correct one.
func TestMistyped(t *testing.T) {
	for given, want := range map[string]string{
		"look --outptu=json": "tool: unknown flag: --outptu (did you mean --output?)\n",
		"look --colour":      "tool: unknown flag: --colour (see tool look --help)\n",
		"lok":                "tool: unknown command lok (did you mean look?)\n",
		"look here":          "tool: unexpected argument here (see tool look --help)\n",
		"install":            "tool: unknown command install (see tool --help)\n",
	} {
		tool := &cobra.Command{Use: "tool"}
		look := &cobra.Command{Use: "look", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error { return nil }}
		look.Flags().String("output", "", "form")
		tool.AddCommand(look)

		code, output := runWithStderr(t, tool, strings.Fields(given)...)

		if code != cli.ExitUsage || output != want {
			t.Errorf("%s: code %d, %q, want %q", given, code, output, want)
		}
	}
}

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config")

	const text = `apiVersion: v1
kind: Config
clusters:
- {name: one, cluster: {server: "http://127.0.0.1:1"}}
contexts:
- {name: here, context: {cluster: one, namespace: ci}}
- {name: there, context: {cluster: one}}
current-context: here
`

	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	t.Setenv("KUBECONFIG", file)

	for _, tc := range []struct {
		kube cli.Kube
		want string
		err  string
	}{
		{kube: cli.Kube{}, want: "ci"},
		{kube: cli.Kube{Context: "there"}, want: "default"},
		{kube: cli.Kube{Kubeconfig: file, Namespace: "mine"}, want: "mine"},
		{kube: cli.Kube{Kubeconfig: filepath.Join(dir, "none")}, err: "read kubeconfig"},
		{kube: cli.Kube{Context: "nowhere"}, err: "find the API server: set --kubeconfig or KUBECONFIG"},
	} {
		got, err := tc.kube.Connect()

		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%+v: %v, want %q", tc.kube, err, tc.err)
			}
		case err != nil:
			t.Errorf("%+v: %v", tc.kube, err)
		case got.Namespace != tc.want || got.Config.Host != "http://127.0.0.1:1" || got.Config.Timeout == 0:
			t.Errorf("%+v: namespace %s of %s, timeout %s; want namespace %s", tc.kube, got.Namespace, got.Config.Host, got.Config.Timeout, tc.want)
		}
	}

	none := filepath.Join(dir, "none")
	t.Setenv("KUBECONFIG", none)

	if _, err := (&cli.Kube{}).Connect(); err == nil || err.Error() != "find the API server: KUBECONFIG is "+none+", but this file does not exist or is empty" {
		t.Errorf("with the name of a kubeconfig that there is not: %v", err)
	}

	t.Setenv("KUBECONFIG", "")

	_, other := os.Stat(clientcmd.RecommendedHomeFile) // the kubeconfig of the user who runs the test
	_, err := (&cli.Kube{}).Connect()

	if other != nil && (err == nil || err.Error() != "find the API server: no kubeconfig found: set --kubeconfig or KUBECONFIG") {
		t.Errorf("without a kubeconfig: %v", err)
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		args []string
		want string
	}{
		"text is the default": {[]string{"version"}, version.Read().String() + "\n"},
		"a flag, in one line": {[]string{"--version"}, "hyperfleet version " + version.Read().Version + "\n"},
	} {
		if got := execute(t, nil, tc.args...); got.err != nil || got.out != tc.want {
			t.Errorf("%s: %+v, want %q", name, got, tc.want)
		}
	}

	var info version.Info

	got := execute(t, nil, "version", "-o", "json")
	if err := json.Unmarshal([]byte(got.out), &info); err != nil || info != version.Read() {
		t.Errorf("json is %s (%v), want %+v", got.out, err, version.Read())
	}
}

// TestOutputFormats checks the formats of each command with --output.
func TestOutputFormats(t *testing.T) {
	t.Parallel()

	spelling.CheckOutput(t, root.New, map[string][]string{
		"jobs":             {"table", "wide", "name", "json", "yaml"},
		"job":              {"table", "json", "yaml"},
		"addresses":        {"table", "wide", "name", "json", "yaml"},
		"hosts diff":       {"table", "wide", "name", "json", "yaml"},
		"doctor":           {"table", "json", "yaml"},
		"uninstall":        {"text", "json", "yaml"},
		"provider conform": {"text", "json", "yaml"},
		"version":          {"text", "json", "yaml"},
	})
}

// TestDefaultsOfFlags checks the defaults of all flags of the program.
func TestDefaultsOfFlags(t *testing.T) {
	t.Parallel()

	defaults.Check(t, "flag hyperfleet", defaults.OfCommand(root.New()))
}
