// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// printer writes pools as text.
type printer struct {
	out io.Writer
	now time.Time
}

// printList prints a table with one row for each pool.
func (p printer) printList(pools []Pool) error {
	if len(pools) == 0 {
		fmt.Fprintln(p.out, "No pools of static addresses found.")

		return nil
	}

	rows := [][]string{{"POOL", "NETWORK", "ADDRESSES", "IN USE", "FREE", "WAITING", "PROBLEM"}}

	for _, pool := range pools {
		rows = append(rows, []string{
			formatOwners(pool.Owners), pool.Network,
			formatCounts(pool, func(u Usage) uint64 { return u.Size }),
			formatCounts(pool, func(u Usage) uint64 { return u.Size - u.Free }),
			formatCounts(pool, func(u Usage) uint64 { return u.Free }), strconv.Itoa(len(pool.WaitingMachines)), pool.Problem,
		})
	}

	return p.printTable(rows)
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

	rows := [][]string{{"ADDRESS", "MACHINE", "PHASE", "SINCE", "NOTE"}}

	for _, a := range pool.Addresses {
		note := ""
		if a.IsOutside {
			note = "no longer part of the pool"
		}

		rows = append(rows, []string{a.Address, a.Machine.Kind + " " + a.Machine.String(), a.Phase, p.formatAge(a.Since), note})
	}

	for _, w := range pool.WaitingMachines {
		rows = append(rows, []string{"", w.Machine.Kind + " " + w.Machine.String(), "", p.formatAge(w.Since), "waits for an address"})
	}

	return p.printTable(rows)
}

func (p printer) formatAge(since *time.Time) string {
	if since == nil {
		return ""
	}

	return duration.HumanDuration(p.now.Sub(*since))
}

func (p printer) printTable(rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)

	for _, row := range rows {
		for i, cell := range row {
			row[i] = cli.SanitizeLine(cell)
			if i < len(row)-1 {
				row[i] = cmp.Or(row[i], "-")
			}
		}

		fmt.Fprintln(table, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}

	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}

	return nil
}
