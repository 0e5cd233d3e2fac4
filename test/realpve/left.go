// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/proxmox"
)

// Left says what is left of tests on a site: nothing, before them and after them.
func (s *Site) Left(ctx context.Context) error {
	rows, err := s.rows(ctx)
	if err != nil {
		return err
	}

	for _, r := range rows {
		if r.VMID >= s.first && r.VMID < s.first+idsOfTests {
			err = errors.Join(err, fmt.Errorf("machine %d on node %s has a VMID of the tests': remove it, or set PVE_VMID",
				r.VMID, r.Node))

			continue
		}

		// The tags are a hint for where to look.
		if !strings.Contains(r.Tags, hypervisor.ManagedBy) {
			continue
		}

		config, failed := s.config(ctx, r)
		err = errors.Join(err, failed)

		notes, _ := config["description"].(string)
		if record, none := proxmox.ParseRecord(notes); none == nil && strings.HasPrefix(record.Cluster, Cluster) {
			err = errors.Join(err, fmt.Errorf("machine %d on node %s is an operator's of cluster %s: remove it",
				r.VMID, r.Node, record.Cluster))
		}
	}

	return errors.Join(err, s.noTasks(ctx), s.noISOs(ctx))
}

// noTasks makes sure that no task works on a machine of the tests'.
func (s *Site) noTasks(ctx context.Context) error {
	var tasks []Task
	if err := s.get(ctx, "/cluster/tasks", &tasks); err != nil {
		return err
	}

	for _, task := range tasks {
		id, err := strconv.Atoi(task.ID)
		if err == nil && task.End == 0 && id >= s.first && id < s.first+idsOfTests {
			return fmt.Errorf("task %s is running", task.UPID)
		}
	}

	return nil
}

// noISOs makes sure that there is no ISO of an operator of the tests'.
func (s *Site) noISOs(ctx context.Context) error {
	isos, err := s.isos(ctx)
	if err != nil {
		return err
	}

	for _, iso := range isos {
		if s.marked(iso.VolID) {
			err = errors.Join(err, fmt.Errorf("ISO %s on node %s is an operator's of the tests: remove it", iso.VolID, iso.Node))
		}
	}

	return err
}

// marked tells whether an ISO is of an operator that this process had.
func (s *Site) marked(volume string) bool {
	found := false

	s.allMarks.Range(func(mark, _ any) bool {
		found = strings.Contains(volume, fmt.Sprintf(":iso/%s", mark))

		return !found
	})

	return found
}
