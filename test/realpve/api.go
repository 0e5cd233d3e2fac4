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
	// patience bounds each wait, pause lies between two looks.
	patience = 2 * time.Minute
	pause    = 200 * time.Millisecond
)

// waitFor waits until ok.
func waitFor(ctx context.Context, what string, ok func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()

	ticker := time.NewTicker(pause)
	defer ticker.Stop()

	for {
		done, err := ok()
		if done {
			return nil
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, errors.Join(ctx.Err(), err))
		case <-ticker.C:
		}
	}
}

// get asks as the administrator.
func (s *Site) get(ctx context.Context, path string, out any) error {
	err := s.root.Get(ctx, path, out)
	for try := 1; try < workerTries && err != nil && strings.Contains(err.Error(), "unexpected end of JSON input"); try++ {
		err = s.root.Get(ctx, path, out) // a busy node cuts an answer short now and then
	}

	if err != nil {
		return fmt.Errorf("get %s: %w", path, err)
	}

	return nil
}

// workerTries bounds the tries to start a task: a busy node fails to now and then, and has
// done nothing.
const workerTries = 5

// task makes a change as the administrator and waits for its task to end well.
func (s *Site) task(ctx context.Context, method func(context.Context, *string) error) error {
	var upid string

	err := method(ctx, &upid)
	for try := 1; try < workerTries && err != nil && strings.Contains(err.Error(), "start worker failed"); try++ {
		err = method(ctx, &upid)
	}

	if err != nil || upid == "" {
		return err
	}

	task := gopve.NewTask(gopve.UPID(upid), s.root)
	if err := task.Wait(ctx, pause, patience); err != nil {
		return err
	}

	if task.IsFailed {
		return fmt.Errorf("task %s: %s", upid, task.ExitStatus)
	}

	return nil
}

func (s *Site) post(ctx context.Context, path string, params map[string]any) error {
	return s.task(ctx, func(ctx context.Context, upid *string) error { return s.root.Post(ctx, path, params, upid) })
}

func (s *Site) delete(ctx context.Context, path string) error {
	return s.task(ctx, func(ctx context.Context, upid *string) error { return s.root.Delete(ctx, path, upid) })
}

// row is one machine in the listing. Its name and status lag, that it is there does not.
type row struct {
	VMID int    `json:"vmid"`
	Node string `json:"node"`
	Tags string `json:"tags"`
}

func (r row) path() string { return fmt.Sprintf("/nodes/%s/qemu/%d", r.Node, r.VMID) }

func (s *Site) rows(ctx context.Context) ([]row, error) {
	var rows []row

	err := s.get(ctx, "/cluster/resources?type=vm", &rows)

	return rows, err
}

// config is a machine's configuration, nil where the machine is gone.
func (s *Site) config(ctx context.Context, r row) (map[string]any, error) {
	var config map[string]any

	err := s.get(ctx, r.path()+"/config", &config)
	if gone(err) {
		return nil, nil //nolint:nilnil // as the comment says
	}

	return config, err
}

func gone(err error) bool { return err != nil && strings.Contains(err.Error(), "does not exist") }

func (s *Site) running(ctx context.Context, r row) (bool, error) {
	var status struct {
		Status string `json:"status"`
	}

	err := s.get(ctx, r.path()+"/status/current", &status)
	if gone(err) {
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

// Ended tells whether a task has, and how.
func (s *Site) Ended(ctx context.Context, upid string) (bool, string) {
	parts := strings.Split(upid, ":")
	if len(parts) < 2 {
		return true, "is no task"
	}

	var status struct {
		Status string `json:"status"`
		Exit   string `json:"exitstatus"`
	}

	err := s.get(ctx, "/nodes/"+parts[1]+"/tasks/"+url.PathEscape(upid)+"/status", &status)

	return err == nil && status.Status == "stopped", status.Exit
}

// iso is a volume of the storage for ISOs.
type iso struct {
	VolID string `json:"volid"`
	Node  string `json:"-"`
}

// isos are those that HyperFleet's operators made.
func (s *Site) isos(ctx context.Context) ([]iso, error) {
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

// text is a configuration in one line.
func text(config map[string]any) string {
	raw, err := json.Marshal(config)
	if err != nil {
		return err.Error()
	}

	return string(raw)
}
