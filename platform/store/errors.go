// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotFound is returned for a resource that is not there.
	ErrNotFound = errors.New("no such resource")
	// ErrExists is returned for a name that another resource of the kind, owner and
	// tenancy has, be it one that is being deleted, and for an id that is taken.
	ErrExists = errors.New("the name is taken")
	// ErrHasChildren is returned by Remove for a resource that owns others.
	ErrHasChildren = errors.New("it owns other resources")
	// ErrOwnerMissing is returned by Insert.
	ErrOwnerMissing = errors.New("no such owner")
	// ErrOwnerDeleting is returned by Insert.
	ErrOwnerDeleting = errors.New("the owner is being deleted")
	// ErrUnstorable is returned for text or JSON that PostgreSQL can't hold: a NUL
	// character, or nesting of thousands of levels.
	ErrUnstorable = errors.New("the value can't be stored")
	// ErrCursorGone is returned for a cursor that is older than what the feed keeps, or
	// from another life of the database: list, and begin anew.
	ErrCursorGone = errors.New("the cursor is older than what is kept")
	// ErrCursorMalformed is returned for a cursor that this feed has not given out.
	ErrCursorMalformed = errors.New("malformed cursor")
	// ErrUnavailable is returned when the database can't be reached, or was not in time:
	// the same call may succeed later. What a transaction wrote may still be there if the
	// answer to its commit was lost.
	ErrUnavailable = errors.New("the database is unavailable")
)

// TargetError says why a reference can't be made.
type TargetError struct {
	// Type of the reference and the target's ID.
	Type, ID string
	// Problem is one of the Target constants.
	Problem string
}

// Problems of targets.
const (
	TargetMissing   = "no such resource"
	TargetDeleting  = "it is being deleted"
	TargetWrongKind = "it is of another kind"
	TargetTwice     = "it is there twice"
)

// Error names the reference.
func (e *TargetError) Error() string {
	return fmt.Sprintf("reference %s to %s: %s", e.Type, e.ID, e.Problem)
}

// SQLSTATE codes, https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeUniqueViolation      = "23505"
	codeForeignKey           = "23503"
	codeSerialization        = "40001"
	codeDeadlock             = "40P01"
	codeUntranslatable       = "22P05"
	codeNotInRepertoire      = "22021"
	codeStatementTooComplex  = "54001"
	codeProgramLimit         = "54000"
	codeQueryCanceled        = "57014"
	codeAdminShutdown        = "57P01"
	codeCrashShutdown        = "57P02"
	codeCannotConnect        = "57P03"
	codeIdleTransaction      = "25P03"
	codeLockNotAvailable     = "55P03"
	codeReadOnly             = "25006"
	codeTooManyConnections   = "53300"
	classConnectionException = "08"
)

func codeOf(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}

	return ""
}

// explain gives an error of the database one of this package's meanings, if it has one.
func explain(err error) error {
	switch code := codeOf(err); {
	case err == nil, errors.Is(err, ErrUnavailable), errors.Is(err, ErrUnstorable):
		return err
	case errors.Is(err, pgx.ErrNoRows), code == codeForeignKey:
		return ErrNotFound
	case code == codeUniqueViolation:
		return ErrExists
	case code == codeUntranslatable, code == codeNotInRepertoire, code == codeStatementTooComplex, code == codeProgramLimit:
		return fmt.Errorf("%w: %w", ErrUnstorable, err)
	case unavailable(err, code):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}

func unavailable(err error, code string) bool {
	switch code {
	case codeQueryCanceled, codeAdminShutdown, codeCrashShutdown, codeCannotConnect, codeIdleTransaction,
		codeLockNotAvailable, codeReadOnly, codeTooManyConnections, codeSerialization, codeDeadlock:
		return true
	case "":
		var (
			network net.Error
			connect *pgconn.ConnectError
		)

		return errors.As(err, &network) || errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) ||
			pgconn.Timeout(err) || lost(err)
	default:
		return code[:2] == classConnectionException
	}
}

// lost says whether a connection that there was has ended.
func lost(err error) bool {
	switch codeOf(err) {
	case codeAdminShutdown, codeCrashShutdown:
		return true
	case "":
		var (
			network *net.OpError
			connect *pgconn.ConnectError
		)

		return !errors.As(err, &connect) && !pgconn.Timeout(err) &&
			(errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
				errors.As(err, &network) || pgconn.SafeToRetry(err))
	default:
		return false
	}
}

// repeatable says whether a transaction that ended so has certainly written nothing, and
// may do better when it is run again.
func repeatable(err error) bool {
	code := codeOf(err)

	return code == codeSerialization || code == codeDeadlock
}
