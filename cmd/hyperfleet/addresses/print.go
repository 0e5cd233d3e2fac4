// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// newList returns the list of pools in all formats.
func newList(pools []Pool) cli.Content {
	var names []string

	for _, pool := range pools {
		for _, owner := range pool.Owners {
			names = append(names, owner.objectName())
		}
	}

	return cli.Content{Data: map[string]any{"pools": pools}, Names: names, Print: func(out io.Writer, isWide bool) error {
		if len(pools) == 0 {
			_, err := fmt.Fprintln(out, "No pools of static addresses found.")

			return err
		}

		return cli.PrintTable(out, pools, listColumns(), isWide)
	}}
}

// listColumns returns the columns of the list of pools.
func listColumns() []screen.Column[Pool] {
	return []screen.Column[Pool]{
		{Title: "POOL", Cell: func(p Pool) string { return formatOwners(p.Owners) }},
		{Title: "NETWORK", Cell: func(p Pool) string { return p.Network }},
		{Title: "ADDRESSES", Cell: func(p Pool) string { return formatCounts(p, func(u Usage) uint64 { return u.Size }) }},
		{Title: "IN USE", Cell: func(p Pool) string { return formatCounts(p, func(u Usage) uint64 { return u.Size - u.Free }) }},
		{Title: "FREE", Cell: func(p Pool) string { return formatCounts(p, func(u Usage) uint64 { return u.Free }) }},
		{Title: "WAITING", Cell: func(p Pool) string { return strconv.Itoa(len(p.WaitingMachines)) }},
		{Title: "MACHINES", Wide: true, Cell: func(p Pool) string { return strconv.FormatUint(p.Machines, 10) }},
		{Title: "FREE RANGES", Wide: true, Cell: formatFree},
		{Title: "PROBLEM", Cell: func(p Pool) string { return p.Problem }},
	}
}

// formatCounts returns the count of each address family that the pool has, IPv4 first, such as "2 + 16".
func formatCounts(pool Pool, number func(Usage) uint64) string {
	var out []string

	for _, usage := range []Usage{pool.IPv4, pool.IPv6} {
		if usage.Size > 0 {
			out = append(out, strconv.FormatUint(number(usage), 10))
		}
	}

	return strings.Join(out, " + ")
}

// formatOwners returns the kind and the names of the objects that share a pool. All of them have the same
// kind.
func formatOwners(owners []Object) string {
	out := make([]string, 0, len(owners))
	for _, object := range owners {
		out = append(out, object.String())
	}

	return owners[0].Kind + " " + strings.Join(out, ", ")
}

// printer writes the details of pools as text.
type printer struct {
	out io.Writer
	now time.Time
}

// printDetails prints all details of each pool.
func (p printer) printDetails(pools []Pool) error {
	for i, pool := range pools {
		if i > 0 {
			fmt.Fprintln(p.out)
		}

		fmt.Fprintln(p.out, cli.SanitizeLine(formatOwners(pool.Owners)))

		for _, line := range [][2]string{
			{"Network", pool.Network},
			{"Addresses", formatCounts(pool, func(u Usage) uint64 { return u.Size })},
			{"Free", formatCounts(pool, func(u Usage) uint64 { return u.Free })},
			{"", formatFree(pool)},
			{"Problem", pool.Problem},
		} {
			if line[1] != "" {
				fmt.Fprintf(p.out, "  %-10s %s\n", line[0], cli.SanitizeLine(line[1]))
			}
		}

		if err := p.printMachines(pool); err != nil {
			return err
		}
	}

	return nil
}

// formatFree lists the ranges of free addresses, and ends with "..." if there may be more.
func formatFree(pool Pool) string {
	out := strings.Join(pool.Free, ", ")
	if pool.Truncated {
		out += ", ..."
	}

	return out
}

// printMachines prints the addresses in use with their machines, and then the machines that wait for an
// address.
func (p printer) printMachines(pool Pool) error {
	if len(pool.Addresses)+len(pool.WaitingMachines) == 0 {
		return nil
	}

	rows := make([]machineRow, 0, len(pool.Addresses)+len(pool.WaitingMachines))

	for _, a := range pool.Addresses {
		row := machineRow{address: a.Address, machine: a.Machine, phase: a.Phase, since: a.Since}
		if a.IsNoLongerInPool {
			row.note = "no longer part of the pool"
		}

		rows = append(rows, row)
	}

	for _, w := range pool.WaitingMachines {
		rows = append(rows, machineRow{machine: w.Machine, since: w.Since, note: "waits for an address"})
	}

	const isWide = false

	return cli.PrintTable(p.out, rows, []screen.Column[machineRow]{
		{Title: "ADDRESS", Cell: func(r machineRow) string { return r.address }},
		{Title: "MACHINE", Cell: func(r machineRow) string { return r.machine.Kind + " " + r.machine.String() }},
		{Title: "PHASE", Cell: func(r machineRow) string { return r.phase }},
		{Title: "SINCE", Cell: func(r machineRow) string { return p.formatAge(r.since) }},
		{Title: "NOTE", Cell: func(r machineRow) string { return r.note }},
	}, isWide)
}

// machineRow is one row of the table of the machines that have an address of a pool or wait for one.
type machineRow struct {
	address, phase, note string
	machine              Object
	since                *time.Time
}

func (p printer) formatAge(since *time.Time) string {
	if since == nil {
		return ""
	}

	return duration.HumanDuration(p.now.Sub(*since))
}
