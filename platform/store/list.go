// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/platform/search"
)

// MaxListBytes is the maximum size of a page in bytes. A page has at least one item, whatever its size.
const MaxListBytes = 8 << 20

const (
	defaultSize = 20

	// firstFetch is the number of rows after which the size of a page is estimated.
	firstFetch = 8
)

// ListQuery selects resources. Resources that are being deleted are included.
type ListQuery struct {
	// Kind selects the resources of one kind. If it is empty, all kinds are selected.
	Kind string
	// ParentID selects the resources of one owner. If it is empty, resources with any owner or none
	// are selected.
	ParentID string
	// Search is a condition in the language of platform/search.
	Search string
	// Order is a list of fields in the language of platform/search. Default: newest first.
	Order string
	// Offset is the number of resources before the page.
	Offset int
	// Size is the maximum number of resources on a page. Default: 20.
	Size int
	// RefType and RefTargetID select resources with such a reference. Either may be empty.
	RefType     string
	RefTargetID string
	// Tenancy selects resources that have at least these dimensions with these values.
	Tenancy map[string]string
}

// Get returns a resource, even if it is being deleted. Errors: ErrNotFound.
func (s *Store) Get(ctx context.Context, id string) (resource Resource, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context) (err error) {
		resource, err = getResource(ctx, s.pool, id)

		return err
	})

	return resource, err
}

// List returns a page of resources and the number of resources on all pages, both from the same
// snapshot of the database. The page ends early if it has several megabytes. Errors: *search.Error.
func (s *Store) List(ctx context.Context, query ListQuery) (page []Resource, total int, err error) {
	statement, err := query.buildStatement()
	if err != nil {
		return nil, 0, err
	}

	err = s.runSnapshot(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// The statement is planned for its values each time, because they decide which index helps.
		args := append([]any{pgx.QueryExecModeDescribeExec}, statement.args...)

		if err := tx.QueryRow(ctx, statement.count, args...).Scan(&total); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, statement.page, args...); err != nil {
			return err
		}

		page, err = fetchPage(ctx, tx)

		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list resources: %w", err)
	}

	return page, total, nil
}

// fetchPage returns the first rows of the cursor page, up to MaxListBytes. It fetches only as many rows at once
// as will probably fit, because rows that are not used cost the database and the network as much as others.
func fetchPage(ctx context.Context, tx pgx.Tx) (page []Resource, err error) {
	size, count := 0, firstFetch
	page = []Resource{}

	for {
		fetch := fmt.Sprintf("-- name: ListResources\nfetch forward %d from page", count)

		found, err := tx.Query(ctx, fetch, pgx.QueryExecModeDescribeExec)
		if err != nil {
			return nil, err
		}

		fetched := 0

		for ; found.Next(); fetched++ {
			for _, value := range found.RawValues() {
				size += len(value)
			}

			if len(page) > 0 && size > MaxListBytes {
				break
			}

			r, err := toResource(found)
			if err != nil {
				return nil, err
			}

			page = append(page, r)
		}

		found.Close()

		if err := found.Err(); err != nil || fetched < count || size >= MaxListBytes {
			return page, err
		}

		count = max((MaxListBytes-size)/(size/len(page)), 1)
	}
}

// listStatement has the two statements of a query, which have the same arguments.
type listStatement struct {
	count, page string
	args        []any
}

// buildStatement returns the SQL that counts the matching resources and the SQL that reads one page of
// them.
func (q *ListQuery) buildStatement() (listStatement, error) {
	args := &search.Args{}

	where, err := q.buildWhere(args)
	if err != nil {
		return listStatement{}, err
	}

	order, err := search.ParseOrder(q.Order)
	if err != nil {
		return listStatement{}, err
	}

	size := cmp.Or(max(q.Size, 0), defaultSize)

	return listStatement{
		count: "-- name: CountResources\nselect count(*) from resources r where " + where,
		// For resources on earlier pages, only the columns of the condition and the order are read.
		page: fmt.Sprintf(`-- name: DeclarePage
declare page no scroll cursor for
with page as materialized (select r.id from resources r where %[1]s order by %[2]s limit %[3]d offset %[4]d)
select %[5]s from resource_rows r where r.id in (select id from page) order by %[2]s`,
			where, order, size, max(q.Offset, 0), resourceColumns),
		args: args.Values(),
	}, nil
}

// buildWhere returns the SQL condition of the query, and adds its arguments to args.
func (q *ListQuery) buildWhere(args *search.Args) (string, error) {
	parts := []string{"(select check_incarnation())"}

	if q.Kind != "" {
		parts = append(parts, "r.kind = "+args.Add(q.Kind))
	}

	if q.ParentID != "" {
		parts = append(parts, matchID("r.owner_id", q.ParentID, args))
	}

	if q.RefType != "" || q.RefTargetID != "" {
		parts = append(parts, q.buildReferences(args))
	}

	if len(q.Tenancy) > 0 {
		tenancy, err := json.Marshal(q.Tenancy)
		if err != nil {
			return "", fmt.Errorf("list resources: %w", err)
		}

		parts = append(parts, "r.tenancy @> "+args.Add(string(tenancy))+"::jsonb")
	}

	if strings.TrimSpace(q.Search) != "" {
		condition, err := search.Parse(q.Search)
		if err != nil {
			return "", err
		}

		parts = append(parts, condition.SQL(args))
	}

	return strings.Join(parts, " and "), nil
}

func (q *ListQuery) buildReferences(args *search.Args) string {
	conditions := []string{"f.source_id = r.id"}

	if q.RefType != "" {
		conditions = append(conditions, "f.ref_type = "+args.Add(q.RefType))
	}

	if q.RefTargetID != "" {
		conditions = append(conditions, matchID("f.target_id", q.RefTargetID, args))
	}

	return "exists (select from resource_references f where " + strings.Join(conditions, " and ") + ")"
}

// matchID returns a condition for an ID. The condition is false if the text is not an ID.
func matchID(column, id string, args *search.Args) string {
	if !isID(id) {
		return "false"
	}

	return column + " = " + args.Add(id) + "::uuid"
}

// Pending has the number of resources of one kind whose condition Reconciled is False.
type Pending struct {
	Kind string
	// Deleting is true if the resources are those whose deletion was requested, and false if they are the others.
	Deleting bool
	// Count is their number, and Stuck the number of those that have been in this state for longer than the threshold,
	// counted from the request for deletion if there is one.
	Count, Stuck int64
	// LongestSeconds is the time of the resource that has been stuck for longest, 0 if none is.
	LongestSeconds float64
}

// Pending counts the resources that are not reconciled, by kind and by whether they are being
// deleted. The parameter now is the time of the clock that conditions are written with.
func (s *Store) Pending(ctx context.Context, now time.Time, stuckAfter time.Duration) (counts []Pending, err error) {
	err = s.runRepeatable(ctx, func(ctx context.Context) (err error) {
		counts, err = queryAll(ctx, s.pool, pgx.RowToStructByName[Pending], `-- name: Pending
with waiting as (
    select kind, deleted_time is not null as deleting,
           greatest((conditions -> 'Reconciled' ->> 'last_transition_time')::timestamptz, deleted_time) as since
    from resources where conditions @> '{"Reconciled": {"status": "False"}}' and (select check_incarnation())
)
select kind, deleting, count(*) as count, (count(*) filter (where since < $1::timestamptz)) as stuck,
       coalesce(extract(epoch from ($2::timestamptz - min(since) filter (where since < $1))), 0)::double precision
           as longest_seconds
from waiting group by kind, deleting order by kind collate "C", deleting`, now.Add(-stuckAfter), now)

		return err
	})

	return counts, wrapf(err, "count resources that are not reconciled")
}
