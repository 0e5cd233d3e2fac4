// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/hyperfleet/hyperfleet/platform/search"
	"github.com/hyperfleet/hyperfleet/platform/store/db"
)

// MaxListBytes is the maximum size of a page in bytes. A page has at least one item, whatever its size.
const MaxListBytes = 8 << 20

const (
	defaultSize = 20

	// firstFetch is the number of rows after which the size of a page is estimated.
	firstFetch = 8

	declarePage = "-- name: DeclarePage :exec\ndeclare page no scroll cursor for"

	// columns are the columns of db.ResourceRow in its order. They are listed by name, so that a
	// replica of an earlier version keeps working while a later version adds columns.
	columns = `r.id, r.kind, r.name, r.spec, r.labels, r.tenancy, r.generation, r.owner_id, r.owner_kind, r.conditions,
	r.created_time, r.updated_time, r.deleted_time, r.created_by, r.updated_by, r.deleted_by, r.refs,
	r.reported`
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
func (s *Store) Get(ctx context.Context, id string) (Resource, error) {
	var resource Resource

	err := s.runRepeatable(ctx, func(ctx context.Context, queries *db.Queries) (err error) {
		resource, err = getResource(ctx, queries, id)

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

	var rows []db.ResourceRow

	err = s.runSnapshot(ctx, func(ctx context.Context, tx pgx.Tx) error {
		// The statement is planned for its values each time, because they decide which index helps.
		args := append([]any{pgx.QueryExecModeDescribeExec}, statement.args...)

		if err := tx.QueryRow(ctx, statement.count, args...).Scan(&total); err != nil {
			return err
		}

		if _, err := tx.Exec(ctx, statement.page, args...); err != nil {
			return err
		}

		rows, err = fetchPage(ctx, tx)

		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list resources: %w", err)
	}

	return fromRows(rows), total, nil
}

// fetchPage returns the first rows of the cursor page, up to MaxListBytes. It fetches only as many rows at once
// as will probably fit, because rows that are not used cost the database and the network as much as others.
func fetchPage(ctx context.Context, tx pgx.Tx) (rows []db.ResourceRow, err error) {
	size, count := 0, firstFetch

	for {
		fetch := fmt.Sprintf("-- name: ListResources :many\nfetch forward %d from page", count)

		found, err := tx.Query(ctx, fetch, pgx.QueryExecModeDescribeExec)
		if err != nil {
			return nil, err
		}

		fetched := 0

		for ; found.Next(); fetched++ {
			for _, value := range found.RawValues() {
				size += len(value)
			}

			if len(rows) > 0 && size > MaxListBytes {
				break
			}

			row, err := pgx.RowToStructByPos[db.ResourceRow](found)
			if err != nil {
				return nil, err
			}

			rows = append(rows, row)
		}

		found.Close()

		if err := found.Err(); err != nil || fetched < count || size >= MaxListBytes {
			return rows, err
		}

		count = max((MaxListBytes-size)/(size/len(rows)), 1)
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
		count: "-- name: CountResources :one\nselect count(*) from resources r where " + where,
		// For resources on earlier pages, only the columns of the condition and the order are read.
		page: fmt.Sprintf(declarePage+`
with page as materialized (select r.id from resources r where %[1]s order by %[2]s limit %[3]d offset %[4]d)
select %[5]s from resource_rows r where r.id in (select id from page) order by %[2]s`,
			where, order, size, max(q.Offset, 0), columns),
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
