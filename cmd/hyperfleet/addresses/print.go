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

// printer writes for people.
type printer struct {
	out io.Writer
	now time.Time
}

// list prints a line for each pool.
func (p printer) list(found []Pool) error {
	if len(found) == 0 {
		fmt.Fprintln(p.out, "No pools of static addresses.")

		return nil
	}

	rows := [][]string{{"POOL", "NETWORK", "ADDRESSES", "IN USE", "FREE", "WAITING", "PROBLEM"}}

	for _, pool := range found {
		rows = append(rows, []string{
			names(pool.Of), pool.Network,
			each(pool, func(u Usage) uint64 { return u.Size }), each(pool, func(u Usage) uint64 { return u.Size - u.Free }),
			each(pool, func(u Usage) uint64 { return u.Free }), strconv.Itoa(len(pool.Waiting)), pool.Problem,
		})
	}

	return p.table(rows)
}

// each is a number of both families, or of the one that there is.
func each(pool Pool, number func(Usage) uint64) string {
	var out []string

	for _, usage := range []Usage{pool.IPv4, pool.IPv6} {
		if usage.Size > 0 {
			out = append(out, strconv.FormatUint(number(usage), 10))
		}
	}

	return strings.Join(out, " + ")
}

// names are the objects that have a pool.
func names(of []Object) string {
	out := make([]string, 0, len(of))
	for _, object := range of {
		out = append(out, object.String())
	}

	return of[0].Kind + " " + strings.Join(out, ", ")
}

// details prints all that is known of pools.
func (p printer) details(found []Pool) error {
	for i, pool := range found {
		if i > 0 {
			fmt.Fprintln(p.out)
		}

		fmt.Fprintln(p.out, cli.Line(names(pool.Of)))

		for _, line := range [][2]string{
			{"Network", pool.Network},
			{"Addresses", each(pool, func(u Usage) uint64 { return u.Size })},
			{"Free", each(pool, func(u Usage) uint64 { return u.Free })},
			{"", free(pool)},
			{"Problem", pool.Problem},
		} {
			if line[1] != "" {
				fmt.Fprintf(p.out, "  %-10s %s\n", line[0], cli.Line(line[1]))
			}
		}

		if err := p.machines(pool); err != nil {
			return err
		}
	}

	return nil
}

// free lists runs of free addresses.
func free(pool Pool) string {
	out := strings.Join(pool.Free, ", ")
	if pool.Cut {
		out += ", ..."
	}

	return out
}

// machines prints who has which address, and who waits.
func (p printer) machines(pool Pool) error {
	if len(pool.Addresses)+len(pool.Waiting) == 0 {
		return nil
	}

	rows := [][]string{{"ADDRESS", "MACHINE", "PHASE", "SINCE", "NOTE"}}

	for _, a := range pool.Addresses {
		note := ""
		if a.Outside {
			note = "the pool does not give it any more"
		}

		rows = append(rows, []string{a.Address, a.Machine.Kind + " " + a.Machine.String(), a.Phase, p.ago(a.Since), note})
	}

	for _, w := range pool.Waiting {
		rows = append(rows, []string{"", w.Machine.Kind + " " + w.Machine.String(), "", p.ago(w.Since), "waits for an address"})
	}

	return p.table(rows)
}

func (p printer) ago(since *time.Time) string {
	if since == nil {
		return ""
	}

	return duration.HumanDuration(p.now.Sub(*since))
}

func (p printer) table(rows [][]string) error {
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)

	for _, row := range rows {
		for i, cell := range row {
			if row[i] = cli.Line(cell); i < len(row)-1 {
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
