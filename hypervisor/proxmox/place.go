// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// candidate is a node that a machine could be placed on, with the template it would be
// cloned from.
type candidate struct {
	Node     string
	Template hypervisor.Template
	Online   bool
	// Trouble says why it is not online.
	Trouble string
	// Cores of the node; FreeMemory after running machines and what is promised, unpromised
	// without the latter.
	Cores       int64
	FreeMemory  int64
	TotalMemory int64
	unpromised  int64
	// Queue is how many clones run, wait or are promised on the storage concerned.
	Queue int
	// Roomy says that its storage has room for the whole disk. Thin storages take more.
	Roomy bool
	// Full says why no machine is placed there, since its storage was full, and Aside why one
	// is only if there is nowhere else. Sites are what both are about.
	Full  string
	Aside string
	Sites []site
}

// choose picks the node for a machine: online, with enough memory and cores, and with a
// storage that was not full a while ago. Nodes that are not set aside come first, then those
// with room for the whole disk. To spread, it takes the shortest queue for clones, then the
// most free memory, then the name; to pack, the least free memory that suffices, then the
// name. Cores may be promised more than once, as Proxmox does, memory not: a VM that does not
// fit fails to start. A held machine needs its memory later, so that its node has to have it
// when it is empty.
func choose(candidates []candidate, spec hypervisor.MachineSpec) (candidate, error) {
	want := spec.Shape

	var fits []candidate

	for _, c := range candidates {
		room := c.FreeMemory
		if spec.Standby {
			room = c.TotalMemory
		}

		if c.Online && c.Full == "" && int64(want.CPU) <= c.Cores && want.Memory <= room {
			fits = append(fits, c)
		}
	}

	if len(fits) == 0 {
		return candidate{}, noCapacity(candidates, want)
	}

	if well := slices.DeleteFunc(slices.Clone(fits), func(c candidate) bool { return c.Aside != "" }); len(well) > 0 {
		fits = well
	}

	return slices.MinFunc(fits, func(a, b candidate) int {
		if spec.Strategy == hypervisor.Pack {
			return cmp.Or(roomyFirst(a, b), cmp.Compare(a.FreeMemory, b.FreeMemory), strings.Compare(a.Node, b.Node))
		}

		return cmp.Or(roomyFirst(a, b), cmp.Compare(a.Queue, b.Queue), cmp.Compare(b.FreeMemory, a.FreeMemory),
			strings.Compare(a.Node, b.Node))
	}), nil
}

// roomyFirst prefers storages with room for the whole disk.
func roomyFirst(a, b candidate) int {
	switch {
	case a.Roomy == b.Roomy:
		return 0
	case a.Roomy:
		return -1
	default:
		return 1
	}
}

func noCapacity(candidates []candidate, want hypervisor.Shape) error {
	var words []string

	reason := "NoCapacity"

	for _, c := range candidates {
		switch {
		case !c.Online:
			words = append(words, c.Node+" "+cmp.Or(c.Trouble, "is offline"))
		case c.Full != "":
			words, reason = append(words, c.Full), reasonAside
		case int64(want.CPU) > c.Cores:
			words = append(words, fmt.Sprintf("%s has %d cores", c.Node, c.Cores))
		default:
			words = append(words, fmt.Sprintf("%s has %s free", c.Node, bytesText(c.FreeMemory)))
		}
	}

	if len(words) == 0 {
		words = []string{"no usable node has the template"}
	}

	return hypervisor.Errorf(hypervisor.NoCapacity, reason,
		"no node has room for %d cores and %s of memory: %s",
		want.CPU, bytesText(want.Memory), strings.Join(words, ", "))
}

// tooLarge says so if a shape fits on none of the nodes, even when they are empty.
func tooLarge(nodes []hypervisor.Node, want hypervisor.Shape) error {
	if len(nodes) == 0 {
		return nil
	}

	for _, n := range nodes {
		if int64(want.CPU) <= n.Total.CPU && want.Memory <= n.Total.Memory {
			return nil
		}
	}

	biggest := slices.MaxFunc(nodes, func(a, b hypervisor.Node) int {
		return cmp.Or(cmp.Compare(a.Total.Memory, b.Total.Memory), cmp.Compare(a.Total.CPU, b.Total.CPU))
	})

	return hypervisor.Errorf(hypervisor.Rejected, "ResourcesExceedNode",
		"%d cores and %s of memory are wanted, the biggest node %s has %d cores and %s: "+
			"ask for less in resources or add a bigger node",
		want.CPU, bytesText(want.Memory), biggest.Name, biggest.Total.CPU, bytesText(biggest.Total.Memory))
}

// bytesText writes an amount of bytes for people.
func bytesText(n int64) string {
	const step = 1024

	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, unit := float64(n), 0

	for value >= step && unit < len(units)-1 {
		value /= step
		unit++
	}

	return fmt.Sprintf("%.4g %s", value, units[unit])
}
