// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	gopve "github.com/luthermonson/go-proxmox"
)

const (
	// waitTimeout limits each wait, and pollInterval is the interval between two checks.
	waitTimeout  = 2 * time.Minute
	pollInterval = 200 * time.Millisecond
)

// waitFor waits until ok returns true.
func waitFor(ctx context.Context, description string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()

	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()

	for {
		done, err := ok()
		if done {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", description, errors.Join(ctx.Err(), err))
		case <-ticker.C:
		}
	}
}

// get reads a path of the API as the administrator.
func (s *Site) get(ctx context.Context, path string, out any) error {
	const truncated = "unexpected end of JSON input"

	err := s.adminClient.Get(ctx, path, out)
	for attempt := 1; attempt < maxAttempts && err != nil && strings.Contains(err.Error(), truncated); attempt++ {
		err = s.adminClient.Get(ctx, path, out) // a busy node sometimes truncates a response
	}

	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}

	return nil
}

// maxAttempts is the maximum number of attempts of a call. A busy node sometimes fails to start a task, and
// has then done nothing.
const maxAttempts = 5

// runTask makes a change as the administrator, and waits until its task has succeeded.
func (s *Site) runTask(ctx context.Context, method func(context.Context, *string) error) error {
	var upid string

	err := method(ctx, &upid)
	for attempt := 1; attempt < maxAttempts && err != nil && strings.Contains(err.Error(), "start worker failed"); attempt++ {
		err = method(ctx, &upid)
	}

	if err != nil || upid == "" {
		return err
	}

	task := gopve.NewTask(gopve.UPID(upid), s.adminClient)
	if err := task.Wait(ctx, pollInterval, waitTimeout); err != nil {
		return err
	}

	if task.IsFailed {
		return fmt.Errorf("task %s: %s", upid, task.ExitStatus)
	}

	return nil
}

func (s *Site) post(ctx context.Context, path string, params map[string]any) error {
	return s.runTask(ctx, func(ctx context.Context, upid *string) error { return s.adminClient.Post(ctx, path, params, upid) })
}

func (s *Site) delete(ctx context.Context, path string) error {
	return s.runTask(ctx, func(ctx context.Context, upid *string) error { return s.adminClient.Delete(ctx, path, upid) })
}

// vmRow is one machine in the list of the cluster's resources. Name and status in that list may be
// outdated, but its set of machines is current.
type vmRow struct {
	VMID int    `json:"vmid"`
	Node string `json:"node"`
	Tags string `json:"tags"`
}

func (r vmRow) path() string { return fmt.Sprintf("/nodes/%s/qemu/%d", r.Node, r.VMID) }

func (s *Site) listVMs(ctx context.Context) ([]vmRow, error) {
	var rows []vmRow

	err := s.get(ctx, "/cluster/resources?type=vm", &rows)

	return rows, err
}

// readConfig returns a machine's configuration, nil if the machine does not exist.
func (s *Site) readConfig(ctx context.Context, r vmRow) (map[string]any, error) {
	var config map[string]any

	err := s.get(ctx, r.path()+"/config", &config)
	if isNotFound(err) {
		return nil, nil //nolint:nilnil // nil means that the machine does not exist
	}

	return config, err
}

func isNotFound(err error) bool { return err != nil && strings.Contains(err.Error(), "does not exist") }

func (s *Site) isRunning(ctx context.Context, r vmRow) (bool, error) {
	var status struct {
		Status string `json:"status"`
	}

	err := s.get(ctx, r.path()+"/status/current", &status)
	if isNotFound(err) {
		return false, nil
	}

	return status.Status == "running", err
}

// Task is a task of Proxmox VE.
type Task struct {
	UPID   string `json:"upid"`
	Type   string `json:"type"`
	ID     string `json:"id"`
	Node   string `json:"node"`
	Status string `json:"status"`
	User   string `json:"user"`
	End    int64  `json:"endtime"`
}

// TaskResult returns whether a task has ended, and its exit status.
func (s *Site) TaskResult(ctx context.Context, upid string) (hasEnded bool, exitStatus string) {
	parts := strings.Split(upid, ":")
	if len(parts) < 2 {
		return true, "the text is not a UPID"
	}

	var status struct {
		Status string `json:"status"`
		Exit   string `json:"exitstatus"`
	}

	err := s.get(ctx, "/nodes/"+parts[1]+"/tasks/"+url.PathEscape(upid)+"/status", &status)

	return err == nil && status.Status == "stopped", status.Exit
}

// iso is a volume of the ISO storage.
type iso struct {
	VolID string `json:"volid"`
	Node  string `json:"-"`
}

// listISOs returns the cloud-init ISOs that HyperFleet's operators have created, on all nodes.
func (s *Site) listISOs(ctx context.Context) ([]iso, error) {
	var nodes []struct {
		Node string `json:"node"`
	}

	if err := s.get(ctx, "/nodes", &nodes); err != nil {
		return nil, err
	}

	var out []iso

	for _, node := range nodes {
		var volumes []iso
		if err := s.get(ctx, "/nodes/"+node.Node+"/storage/"+s.iso+"/content?content=iso", &volumes); err != nil {
			return nil, err
		}

		for _, v := range volumes {
			if strings.Contains(v.VolID, ":iso/hf-") {
				out = append(out, iso{VolID: v.VolID, Node: node.Node})
			}
		}
	}

	return out, nil
}

// formatConfig returns a configuration as one line of JSON.
func formatConfig(config map[string]any) string {
	raw, err := json.Marshal(config)
	if err != nil {
		return err.Error()
	}

	return string(raw)
}
