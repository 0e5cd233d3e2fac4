// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrNotFound is returned for a resource that does not exist.
	ErrNotFound = errors.New("no such resource")
	// ErrExists is returned for a name that another resource of the same kind, owner and tenancy
	// has, even if that resource is being deleted, and for an ID that is in use.
	ErrExists = errors.New("the name is taken")
	// ErrHasChildren is returned by Remove for a resource that owns other resources.
	ErrHasChildren = errors.New("it owns other resources")
	// ErrOwnerMissing is returned by Insert if the owner does not exist.
	ErrOwnerMissing = errors.New("no such owner")
	// ErrOwnerDeleting is returned by Insert if the owner is being deleted.
	ErrOwnerDeleting = errors.New("the owner is being deleted")
	// ErrUnstorable is returned for text or JSON that PostgreSQL can't store: it has a NUL
	// character, or it is nested thousands of levels deep.
	ErrUnstorable = errors.New("the value can't be stored")
	// ErrCursorGone is returned for a cursor that is older than the oldest change in the feed, or
	// that names a change which a restore of the database has removed. The caller has to list the
	// resources and start from a new cursor.
	ErrCursorGone = errors.New("the cursor is older than the oldest change in the feed, or from before a restore")
	// ErrCursorMalformed is returned for a text that is not a cursor of this feed.
	ErrCursorMalformed = errors.New("malformed cursor")
	// ErrUnavailable is returned if the database can't be reached or does not respond in time. The
	// same call may succeed later. If the response to a commit was lost, the transaction may have
	// been committed.
	ErrUnavailable = errors.New("the database is unavailable")
)

// TargetError says why a reference can't be created.
type TargetError struct {
	// Type is the type of the reference, ID the ID of its target.
	Type, ID string
	// Problem is one of the Target constants.
	Problem string
}

// Values of TargetError.Problem.
const (
	TargetMissing   = "no such resource"
	TargetDeleting  = "it is being deleted"
	TargetWrongKind = "it has another kind"
	TargetDuplicate = "it is listed more than once"
)

// Error returns the reference and the problem.
func (e *TargetError) Error() string {
	return fmt.Sprintf("reference %s to %s: %s", e.Type, e.ID, e.Problem)
}

// SQLSTATE codes, https://www.postgresql.org/docs/current/errcodes-appendix.html.
const (
	codeUniqueViolation     = "23505"
	codeForeignKey          = "23503"
	codeSerialization       = "40001"
	codeDeadlock            = "40P01"
	codeUntranslatable      = "22P05"
	codeNotInRepertoire     = "22021"
	codeStatementTooComplex = "54001"
	codeProgramLimit        = "54000"
	codeAdminShutdown       = "57P01"
	codeCrashShutdown       = "57P02"
	codeIdleTransaction     = "25P03"
	codeLockNotAvailable    = "55P03"
	codeReadOnly            = "25006"
	codeUndefinedFunction   = "42883"
	// codeRestored is raised by check_incarnation.
	codeRestored = "HF001"

	classConnectionException   = "08"
	classInsufficientResources = "53"
	classOperatorIntervention  = "57"
	classSystemError           = "58"
)

func sqlState(err error) string {
	var server *pgconn.PgError
	if errors.As(err, &server) {
		return server.Code
	}

	return ""
}

// wrapf adds what has failed to an error of the database, which it classifies. It returns nil for nil.
func wrapf(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}

	return fmt.Errorf(format+": %w", append(args, classifyError(err))...)
}

// classifyError converts an error of the database to an error of this package. If there is no
// matching one, it returns the error unchanged.
func classifyError(err error) error {
	switch code := sqlState(err); {
	case err == nil, errors.Is(err, ErrUnavailable), errors.Is(err, ErrUnstorable):
		return err
	case errors.Is(err, pgx.ErrNoRows), code == codeForeignKey:
		return ErrNotFound
	case code == codeUniqueViolation:
		return ErrExists
	case code == codeUntranslatable, code == codeNotInRepertoire, code == codeStatementTooComplex, code == codeProgramLimit:
		return fmt.Errorf("%w: %w", ErrUnstorable, err)
	case isUnavailable(err, code):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	default:
		return err
	}
}

func isUnavailable(err error, code string) bool {
	switch code {
	case codeIdleTransaction, codeLockNotAvailable, codeReadOnly, codeSerialization, codeDeadlock, codeRestored:
		return true
	case "":
		var (
			network net.Error
			connect *pgconn.ConnectError
		)

		return errors.As(err, &network) || errors.As(err, &connect) || errors.Is(err, context.DeadlineExceeded) ||
			pgconn.Timeout(err) || isConnectionLost(err)
	default:
		return slices.Contains([]string{
			classConnectionException, classInsufficientResources, classOperatorIntervention, classSystemError,
		}, code[:2])
	}
}

// isConnectionLost returns true if an established connection has ended.
func isConnectionLost(err error) bool {
	switch sqlState(err) {
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

// isRepeatable returns true if the transaction has certainly written nothing and may succeed if it
// is repeated.
func isRepeatable(err error) bool {
	code := sqlState(err)

	return code == codeSerialization || code == codeDeadlock
}
