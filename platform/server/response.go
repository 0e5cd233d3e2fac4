// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/entity"
	"github.com/hyperfleet/hyperfleet/platform/store"
)

// readBody reads the body of a request and returns an error if it would not come back as it is. The body can
// be read again.
func readBody(r *http.Request) error {
	data, err := io.ReadAll(r.Body)

	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newProblem(CodeTooLarge, "the body has more than %d bytes", tooLarge.Limit)
	}

	if err != nil {
		return newInvalid(entity.FieldError{Field: "body", Message: "could not be read"})
	}

	requestFromContext(r.Context()).body = data
	r.Body = io.NopCloser(bytes.NewReader(data))

	if inexact, ok := errors.AsType[*exactjson.Error](store.CheckJSON(data)); ok {
		field := cmp.Or(entity.FormatFieldPath("", inexact.Path), "body")

		return newInvalid(entity.FieldError{Field: field, Message: inexact.Problem})
	}

	return nil
}

// decodeBody decodes the body of a request, which readBody has read and which matches the OpenAPI document.
func decodeBody[T any](r *http.Request) (body T, err error) {
	if err := exactjson.Unmarshal(requestFromContext(r.Context()).body, &body); err != nil {
		return body, newMalformed(fmt.Errorf("decode JSON body: %w", err))
	}

	return body, nil
}

// readSpec returns the spec in the body of a request as it is written, so that its numbers keep their notation
// as far as the database does.
func readSpec(ctx context.Context) (json.RawMessage, error) {
	var body struct {
		Spec json.RawMessage `json:"spec"`
	}

	if err := json.Unmarshal(requestFromContext(ctx).body, &body); err != nil {
		return nil, newMalformed(fmt.Errorf("decode spec: %w", err))
	}

	return body.Spec, nil
}

// response is the result of every operation: a status, and a body unless the status is 204.
type response struct {
	status int
	body   any
	// etag is the ETag of a body with one resource.
	etag string
}

func (a response) write(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Vary", "Accept-Encoding")

	if a.body == nil {
		w.WriteHeader(a.status)

		return nil
	}

	parts, err := encodeParts(a.body)
	if err != nil {
		return fmt.Errorf("encode response: %w", err)
	}

	if a.etag != "" {
		w.Header().Set("ETag", a.etag)
	}

	w.Header().Set("Content-Type", "application/json")

	size := 0
	for _, part := range parts {
		size += len(part)
	}

	// A response with one resource has a strong ETag, which clients send back with If-Match. A strong ETag must
	// not name two representations (RFC 9110, 8.8.3.3), so such a response is not compressed. An error of Write
	// means that the client has gone.
	if size < minGzipSize || a.etag != "" || !acceptsGzip(r.Header) {
		w.WriteHeader(a.status)

		for _, part := range parts {
			_, _ = w.Write(part)
		}

		return nil
	}

	w.Header().Set("Content-Encoding", encodingGzip)
	w.WriteHeader(a.status)

	compressed, _ := gzip.NewWriterLevel(w, gzip.BestSpeed) // the level is valid

	for _, part := range parts {
		_, _ = compressed.Write(part)
	}

	_ = compressed.Close()

	return nil
}

const (
	encodingGzip = "gzip"
	// minGzipSize is the size in bytes from which responses are compressed.
	minGzipSize = 8 << 10
)

var zeroWeightPattern = regexp.MustCompile(`^q=0(\.0*)?$`)

// acceptsGzip reports whether a client accepts compressed responses (RFC 9110, 12.5.3).
func acceptsGzip(header http.Header) bool {
	acceptsAny := false

	for value := range strings.SplitSeq(strings.Join(header.Values("Accept-Encoding"), ","), ",") {
		coding, weight, _ := strings.Cut(strings.ToLower(strings.ReplaceAll(value, " ", "")), ";")
		isAccepted := !zeroWeightPattern.MatchString(weight)

		switch coding {
		case encodingGzip:
			return isAccepted
		case "*":
			acceptsAny = isAccepted
		}
	}

	return acceptsAny
}

// encodedList is a page of resources or statuses that are encoded already.
type encodedList struct {
	openapi.ResourceList

	items []json.RawMessage
}

// finish sets the numbers of a list whose first item is at the offset.
func (l *encodedList) finish(offset int) {
	l.Size = len(l.items)

	if next := offset + l.Size; l.Size > 0 && next < l.Total {
		l.NextOffset = next
	}
}

// encodeParts returns a body as JSON. The items of a list stay parts, because a copy would take memory.
func encodeParts(body any) ([][]byte, error) {
	list, isList := body.(encodedList)
	if isList {
		list.Items = []openapi.Resource{}
		body = list.ResourceList
	}

	data, err := json.Marshal(body)
	if err != nil || !isList {
		return [][]byte{data, []byte("\n")}, err
	}

	before, after, _ := bytes.Cut(data, []byte(`"items":[`))
	parts := [][]byte{before, []byte(`"items":[`)}

	for i, item := range list.items {
		if i > 0 {
			parts = append(parts, []byte(","))
		}

		parts = append(parts, item)
	}

	return append(parts, after, []byte("\n")), nil
}
