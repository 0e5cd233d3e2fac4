// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxConsoles bounds how many VMs' consoles are kept.
const maxConsoles = 1000

// saveConsoles writes what the VMs' guests have said into files, one per VM, and
// remembers the last lines of the one that was started last.
func (s *stack) saveConsoles(ctx context.Context) error {
	calls, err := s.hypervisor.control.Calls(ctx)
	if err != nil {
		return fmt.Errorf("read consoles: %w", err)
	}

	var errs []error

	ids := slices.Sorted(maps.Keys(calls.ByVM))
	for _, id := range ids[max(len(ids)-maxConsoles, 0):] {
		if _, foreign := s.baseline.vms[id]; foreign {
			continue
		}

		text, err := s.hypervisor.control.Log(ctx, id)
		if err != nil || text == "" {
			errs = append(errs, err)

			continue
		}

		name := fmt.Sprintf("vm-%d", id)
		errs = append(errs, writePrivate(s.logPath(name), []byte(text)))
		s.lastConsole = consoleTail{name: name, text: strings.TrimSpace(text)}
	}

	return errors.Join(errs...)
}

// consoleTail is what one VM's guest has said.
type consoleTail struct{ name, text string }
