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

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// envProgram makes this test program the operator's.
const envProgram = "HYPERFLEETTEST_PROGRAM"

// env is for all commands that look at a namespace: their tests keep apart by it.
var env *kube.Env

func TestMain(m *testing.M) {
	if os.Getenv(envProgram) != "" {
		main()
	}

	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e }, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(live.AddToScheme))
}

// executed is what became of a command.
type executed struct {
	out string
	err error
}

// run runs the program with arguments, on the API server that a configuration leads to.
func run(ctx context.Context, t *testing.T, in io.Reader, out io.Writer, on *rest.Config, args ...string) error {
	t.Helper()

	cmd := command()
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetIn(in)
	cmd.SetOut(out)
	cmd.SetErr(out)

	if on != nil {
		args = slices.Insert(args, 1, "--kubeconfig", env.Kubeconfig(t, on)) // what is given goes before it
	}

	cmd.SetArgs(args)

	return cmd.ExecuteContext(ctx)
}

// execute is run where nobody is to answer anything.
func execute(t *testing.T, on *rest.Config, args ...string) executed {
	t.Helper()

	return answer(t, "", on, args...)
}

// answer is run with an answer to what is asked.
func answer(t *testing.T, text string, on *rest.Config, args ...string) executed {
	t.Helper()

	var out bytes.Buffer

	err := run(t.Context(), t, strings.NewReader(text), &out, on, args...)

	return executed{out: out.String(), err: err}
}

// says makes sure that the command went well, and said all this.
func (e executed) says(t *testing.T, parts ...string) {
	t.Helper()

	if e.err != nil {
		t.Errorf("it ended with %v", e.err)
	}

	contains(t, e.out, parts...)
}

// anyCode is for where the words alone matter.
const anyCode = -1

// fails makes sure that the command ended with a code, and with these words.
func (e executed) fails(t *testing.T, code int, parts ...string) {
	t.Helper()

	if got := cli.ExitCode(e.err); e.err == nil || got != code && code != anyCode {
		t.Errorf("it ended with code %d, %v; want %d\n%s", got, e.err, code, e.out)

		return
	}

	contains(t, e.err.Error(), parts...)
}

func contains(t *testing.T, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()

	if err != nil {
		t.Fatal(err)
	}
}

// put makes an object with a status.
func put[T client.Object](t *testing.T, object T, status func(T)) {
	t.Helper()
	env.Create(t, object)
	status(object)
	must(t, env.Client.Status().Update(t.Context(), object))
}

// fileWith is a file with a text.
func fileWith(t *testing.T, text string) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte(text), 0o600))

	return file
}
