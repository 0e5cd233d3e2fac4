// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Results of a task, in the words of the protocol.
const (
	resultNone      = "RESULT_UNSPECIFIED"
	resultSuccess   = "RESULT_SUCCESS"
	resultFailure   = "RESULT_FAILURE"
	resultCancelled = "RESULT_CANCELLED"
)

const (
	// reportTries of the last word on a job.
	reportTries = 5
	reportPause = time.Second
)

var errCancelled = errors.New("cancelled by the server")

// work runs one job and reports it.
func (p *Program) work(ctx context.Context, c *client, t *task) {
	finish := context.WithoutCancel(ctx) // a signal must not leave a job taken and forgotten
	p.log("info", fmt.Sprintf("task %s repo is %s %s %s", t.ID, t.Context.Repository, t.Context.ActionsURL, c.conn.Address))
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	reported := make(chan struct{})
	go func() {
		defer close(reported)
		p.report(inner, cancel, c, t)
	}()
	lines, err := p.scripts(inner, c, t)
	cause := context.Cause(inner)
	cancel(nil)
	<-reported
	result := resultSuccess
	switch {
	case cause != nil:
		result = resultCancelled
	case err != nil:
		result = resultFailure
		lines = append(lines, "::error::"+err.Error())
	}
	if errors.Is(cause, errCancelled) {
		return // the server knows
	}
	if err := c.logs(finish, t, 0, lines, true); err != nil {
		p.log("warning", "ReportLog error: "+err.Error())
	}
	for try := 1; ; try++ {
		if _, err = c.update(finish, t, result); err == nil || try == reportTries {
			return
		}
		p.log("warning", "ReportState error: "+err.Error())
		time.Sleep(reportPause)
	}
}

// report keeps the job alive, and stops it when the server says so. A server that cancels a
// job removes its ephemeral runner with it, and knows neither then.
func (p *Program) report(ctx context.Context, stop context.CancelCauseFunc, c *client, t *task) {
	tick := time.NewTicker(p.Fetch)
	defer tick.Stop()
	for {
		result, err := c.update(ctx, t, resultNone)
		if isUnregistered(err) || err == nil && result != resultNone && result != "" {
			stop(errCancelled)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// scripts runs the steps of a job, one after the other, and gives what they print.
func (p *Program) scripts(ctx context.Context, c *client, t *task) ([]string, error) {
	scripts, err := t.scripts()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.Dir, "task-")
	if err != nil {
		return nil, fmt.Errorf("prepare environment: %w", err)
	}
	var out bytes.Buffer
	for _, script := range scripts {
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "set -e\n"+script)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		cmd.Env = append(os.Environ(), "CI=true", "GITHUB_SERVER_URL="+c.conn.Address, "GITHUB_REPOSITORY="+t.Context.Repository)
		cmd.Env = append(cmd.Env, c.conn.env...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
		cmd.WaitDelay = 5 * time.Second
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("run script: %w", err)
			break
		}
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n"), err
}
