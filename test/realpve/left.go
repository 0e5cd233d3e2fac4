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

// CheckLeftovers returns an error that names all machines, running tasks and cloud-init ISOs of tests on
// the site. There must be none before and after a test run.
func (s *Site) CheckLeftovers(ctx context.Context) error {
	rows, err := s.listVMs(ctx)
	if err != nil {
		return err
	}

	for _, r := range rows {
		if r.VMID >= s.firstVMID && r.VMID < s.firstVMID+vmidsOfTests {
			err = errors.Join(err, fmt.Errorf("machine %d on node %s has a VMID of the tests: delete it, or set PVE_VMID",
				r.VMID, r.Node))

			continue
		}

		// Read the configuration only of machines with HyperFleet's tag.
		if !strings.Contains(r.Tags, hypervisor.ManagedBy) {
			continue
		}

		config, readErr := s.readConfig(ctx, r)
		err = errors.Join(err, readErr)

		notes, _ := config["description"].(string)
		if record, parseErr := proxmox.ParseRecord(notes); parseErr == nil && strings.HasPrefix(record.Cluster, Cluster) {
			err = errors.Join(err, fmt.Errorf("machine %d on node %s belongs to an operator of cluster %s: delete it",
				r.VMID, r.Node, record.Cluster))
		}
	}

	return errors.Join(err, s.checkTasks(ctx), s.checkISOs(ctx))
}

// checkTasks returns an error if a task is running on a machine of the tests.
func (s *Site) checkTasks(ctx context.Context) error {
	var tasks []Task
	if err := s.get(ctx, "/cluster/tasks", &tasks); err != nil {
		return err
	}

	for _, task := range tasks {
		id, err := strconv.Atoi(task.ID)
		if err == nil && task.End == 0 && id >= s.firstVMID && id < s.firstVMID+vmidsOfTests {
			return fmt.Errorf("task %s is running", task.UPID)
		}
	}

	return nil
}

// checkISOs returns an error if an ISO of a test's operator exists.
func (s *Site) checkISOs(ctx context.Context) error {
	isos, err := s.listISOs(ctx)
	if err != nil {
		return err
	}

	for _, iso := range isos {
		if s.isOwnISO(iso.VolID) {
			err = errors.Join(err, fmt.Errorf("ISO %s on node %s belongs to a test's operator: delete it", iso.VolID, iso.Node))
		}
	}

	return err
}

// isOwnISO returns true if an ISO belongs to an operator of this test program.
func (s *Site) isOwnISO(volume string) bool {
	found := false

	s.allISOPrefixes.Range(func(prefix, _ any) bool {
		found = strings.Contains(volume, fmt.Sprintf(":iso/%s", prefix))

		return !found
	})

	return found
}
