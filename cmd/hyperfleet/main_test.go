// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/root"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// envProgram is the environment variable that makes the test binary run the program instead of the tests.
const envProgram = "HYPERFLEETTEST_PROGRAM"

// env is the API server for the tests of all commands that read one namespace. Each test uses its own namespace.
var env *kube.Env

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		main()
	}

	kube.Main(m, &env, kube.WithCRDs("../../deploy/crds"))
}

// executed is the output and the error of a command.
type executed struct {
	out string
	err error
}

// run runs the program with arguments on the given API server.
func run(ctx context.Context, t *testing.T, in io.Reader, out io.Writer, on *rest.Config, args ...string) error {
	t.Helper()

	cmd := root.New()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(out)

	if on != nil {
		args = slices.Insert(args, 1, "--kubeconfig", env.Kubeconfig(t, on)) // a later --kubeconfig overrides this one
	}

	cmd.SetArgs(args)

	return cmd.ExecuteContext(ctx)
}

// execute runs the program without input.
func execute(t *testing.T, on *rest.Config, args ...string) executed {
	t.Helper()

	return executeWithInput(t, "", on, args...)
}

// executeWithInput runs the program with the given input.
func executeWithInput(t *testing.T, text string, on *rest.Config, args ...string) executed {
	t.Helper()

	var out bytes.Buffer

	err := run(t.Context(), t, strings.NewReader(text), &out, on, args...)

	return executed{out: out.String(), err: err}
}

// expectSuccess checks that the command succeeded, and that its output contains all parts.
func (e executed) expectSuccess(t *testing.T, parts ...string) {
	t.Helper()

	if e.err != nil {
		t.Errorf("it ended with %v", e.err)
	}

	checkContains(t, e.out, parts...)
}

// anyCode accepts any exit code other than 0.
const anyCode = -1

// expectFailure checks that the command failed with the given exit code, and that the error contains all parts.
func (e executed) expectFailure(t *testing.T, code int, parts ...string) {
	t.Helper()

	if got := cli.ExitCode(e.err); e.err == nil || got != code && code != anyCode {
		t.Errorf("it ended with code %d, %v; want %d\n%s", got, e.err, code, e.out)

		return
	}

	checkContains(t, e.err.Error(), parts...)
}

func checkContains(t *testing.T, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

// createWithStatus creates an object and sets its status.
func createWithStatus[T client.Object](t *testing.T, object T, status func(T)) {
	t.Helper()
	env.Create(t, object)
	status(object)
	must.Do(t, env.Client.Status().Update(t.Context(), object))
}

// writeTempFile writes a text to a file and returns its path.
func writeTempFile(t *testing.T, text string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, []byte(text), 0o600))

	return file
}
