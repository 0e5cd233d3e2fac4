// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// generic runs a command that does the one job that the machine was created for.
type generic struct{}

// Results of a job whose command was stopped.
const (
	resultCancelled = "cancelled"
	resultTimedOut  = "timed_out"
)

// signalBase is added to the number of a signal to get the exit code that shells use for it.
const signalBase = 128

func (generic) validate(c *guest.Config) error {
	switch {
	case len(c.Command) == 0 || c.Command[0] == "":
		return errors.New("command is missing: platform generic runs it as the job")
	case c.JobID == "":
		return errors.New("job_id is missing: the machine runs one job")
	}

	for i, arg := range c.Command {
		if strings.ContainsRune(arg, 0) {
			return fmt.Errorf("command[%d] contains a zero byte", i)
		}
	}

	if err := validateEnvironment("env", c.Env); err != nil {
		return err
	}

	return rejectUnusedFields(c, "jit_config", "runner_token", "registration_url", "runner.program", "runner.download_url")
}

// programPath returns the empty string, because the command can be any command in PATH.
func (generic) programPath(*guest.Config) string { return "" }

func (generic) prepare(context.Context, *Service, *guest.Config, *account) error { return nil }

func (generic) newLaunch(s *Service, c *guest.Config) launch {
	out := launch{
		path: c.Command[0], args: c.Command[1:], dir: s.path(c.Runner.WorkDir), jobID: c.JobID,
		success: "success", failure: "failure", env: formatEnvironment(c.Env),
		quit: syscall.SIGTERM, abort: syscall.SIGTERM,
	}

	switch inRoot := s.path(out.path); {
	case filepath.Base(out.path) == out.path:
		out.path = lookUpCommand(out.path)
	case isAbsolute(out.path) && isFile(inRoot): // a file below Options.Root takes precedence
		out.path = inRoot
	}

	return out
}

func isFile(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.Mode().IsRegular()
}

// parseLine returns no events, because the output of the command has no known format.
func (generic) parseLine(string) (event, bool) { return event{}, false }

// endAfterExit ends the machine, because the job ends with the command.
func (generic) endAfterExit(w *runnerWatch, code int) *endError {
	w.setResult(code)

	return w.newJobDone()
}

func (generic) credentialFiles(*guest.Config) []string { return nil }
