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

// maxConsoles is the maximum number of VMs whose console output is kept.
const maxConsoles = 1000

// saveConsoles writes the console output of each VM to a file, except for VMs that existed before the
// first job. It sets lastConsole to the output of the VM with the highest ID.
func (s *stack) saveConsoles(ctx context.Context) error {
	texts, err := s.hypervisor.consoles(ctx)
	errs := []error{err}

	for _, id := range slices.Sorted(maps.Keys(texts)) {
		if _, isForeign := s.baseline.vms[id]; isForeign || texts[id] == "" {
			continue
		}

		name := fmt.Sprintf("vm-%d", id)
		errs = append(errs, writePrivateFile(s.logPath(name), []byte(texts[id])))
		s.lastConsole = consoleLog{name: name, text: strings.TrimSpace(texts[id])}
	}

	return errors.Join(errs...)
}

// consoleLog is the console output of one VM.
type consoleLog struct{ name, text string }
