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
	texts, err := s.hypervisor.consoles(ctx)
	errs := []error{err}

	for _, id := range slices.Sorted(maps.Keys(texts)) {
		if _, foreign := s.baseline.vms[id]; foreign || texts[id] == "" {
			continue
		}

		name := fmt.Sprintf("vm-%d", id)
		errs = append(errs, writePrivate(s.logPath(name), []byte(texts[id])))
		s.lastConsole = consoleTail{name: name, text: strings.TrimSpace(texts[id])}
	}

	return errors.Join(errs...)
}

// consoleTail is what one VM's guest has said.
type consoleTail struct{ name, text string }
