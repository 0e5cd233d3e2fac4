// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/script"
)

// Results of a task in the protocol.
const (
	resultUnspecified = "RESULT_UNSPECIFIED"
	resultSuccess     = "RESULT_SUCCESS"
	resultFailure     = "RESULT_FAILURE"
	resultCancelled   = "RESULT_CANCELLED"
)

const (
	// reportAttempts is the number of attempts to report the end of a job.
	reportAttempts = 5
	reportDelay    = time.Second
)

var errCancelled = errors.New("cancelled by the server")

// runTask runs one job and reports it.
func (p *Program) runTask(ctx context.Context, c *client, t *task) {
	reportCtx := context.WithoutCancel(ctx) // a signal must not end the calls of an accepted job
	p.log("info", fmt.Sprintf("task %s repo is %s %s %s", t.ID, t.Context.Repository, t.Context.ActionsURL, c.conn.Address))
	jobCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.reportProgress(jobCtx, cancel, c, t)
	}()
	lines, err := p.runScripts(jobCtx, c, t)
	cause := context.Cause(jobCtx)
	cancel(nil)
	<-done
	result := resultSuccess
	switch {
	case cause != nil:
		result = resultCancelled
	case err != nil:
		result = resultFailure
		lines = append(lines, "::error::"+err.Error())
	}
	if errors.Is(cause, errCancelled) {
		return // the server has ended the job
	}
	const isLast = true
	if err := c.sendLog(reportCtx, t, 0, lines, isLast); err != nil {
		p.log("warning", "ReportLog error: "+err.Error())
	}
	for attempt := 1; ; attempt++ {
		if _, err = c.update(reportCtx, t, result); err == nil || attempt == reportAttempts {
			return
		}
		p.log("warning", "ReportState error: "+err.Error())
		time.Sleep(reportDelay)
	}
}

// reportProgress renews the job at an interval, and calls stop if the server has ended the job. A
// server that cancels a job also deletes its ephemeral runner, so the next call fails because the
// runner is unknown.
func (p *Program) reportProgress(ctx context.Context, stop context.CancelCauseFunc, c *client, t *task) {
	tick := time.NewTicker(p.FetchInterval)
	defer tick.Stop()
	for {
		result, err := c.update(ctx, t, resultUnspecified)
		if isUnregistered(err) || err == nil && result != resultUnspecified && result != "" {
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

// runScripts runs the scripts of a job one after the other, and returns the lines of their output.
func (p *Program) runScripts(ctx context.Context, c *client, t *task) ([]string, error) {
	scripts, err := t.scripts()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(p.Dir, "task-")
	if err != nil {
		return nil, fmt.Errorf("prepare environment: %w", err)
	}
	var out bytes.Buffer
	for _, text := range scripts {
		cmd := script.New(ctx, text, 5*time.Second)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
		cmd.Env = append(os.Environ(), "CI=true", "GITHUB_SERVER_URL="+c.conn.Address, "GITHUB_REPOSITORY="+t.Context.Repository)
		cmd.Env = append(cmd.Env, c.conn.env...)
		if err = cmd.Run(); err != nil {
			err = fmt.Errorf("run script: %w", err)
			break
		}
	}
	return strings.Split(strings.TrimSpace(out.String()), "\n"), err
}
