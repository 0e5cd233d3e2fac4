// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// generic runs a command that does the one job the machine was made for.
type generic struct{}

// Results of a job whose command was told to stop.
const (
	resultCancelled = "cancelled"
	resultTimedOut  = "timed_out"
)

// signalBase begins the exit codes that stand for a signal, as shells have them.
const signalBase = 128

func (generic) check(c *guest.Config) error {
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		return errors.New("command is missing: it does the job")
	case c.JobID == "":
		return errors.New("job_id is missing: the machine is for one job")
	}

	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("command[%d] holds a zero byte", i)
		}
	}

	if err := validateEnvironment("env", c.Env); err != nil {
		return err
	}

	return unused(c, "jit_config", "runner_token", "registration_url", "runner.program", "runner.download_url")
}

// program: the command may be any that the system finds.
func (generic) program(*guest.Config) string { return "" }

func (generic) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (generic) launch(s *Service, c *guest.Config) launch {
	out := launch{
		path: c.Command[0], args: c.Command[1:], dir: s.path(c.Runner.WorkDir), job: c.JobID,
		success: "success", failure: "failure", env: environment(c.Env),
		quit: syscall.SIGTERM, abort: syscall.SIGTERM,
	}

	switch own := s.path(out.path); {
	case !strings.Contains(out.path, "/"):
		out.path = lookUp(out.path)
	case filepath.IsAbs(out.path) && isFile(own): // what another root has of its own goes first
		out.path = own
	}

	return out
}

// lookUp finds a command in PATH, also where the service itself was started without one.
func lookUp(name string) string {
	for _, dir := range filepath.SplitList(cmp.Or(os.Getenv("PATH"), defaultPath)) {
		file := filepath.Join(dir, name)
		//nolint:gosec // PATH is the machine's own
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return file
		}
	}

	return name
}

func isFile(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.Mode().IsRegular()
}

// read: a job's words are its own.
func (generic) read(string) (event, bool) { return event{}, false }

// verdict: the command's end is the job's.
func (generic) verdict(w *watch, exit int) *end {
	w.exited(exit)

	return w.done()
}

func (generic) credentials(*guest.Config) []string { return nil }
