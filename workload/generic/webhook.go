// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Limits of a RunnerJob's fields in characters, in addition to those of all platforms.
const (
	maxIDLength     = 128
	maxNameLength   = 1024
	maxSourceLength = 255
)

// ErrPayload means that a body does not describe a job. The error that wraps it names the field and
// the fix.
var ErrPayload = errors.New("webhook body is not a job")

// sourcePattern is the pattern of workload.config.generic.source.
var sourcePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)

// Webhooks verifies and parses the webhooks of a source. The zero value is ready to use.
type Webhooks struct {
	// Clock is used to check the age of signatures. It defaults to the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

// payload is the webhook's body. Its pointers distinguish missing fields from empty ones.
type payload struct {
	ID         *string  `json:"id"`
	Source     *string  `json:"source"`
	Name       string   `json:"name"`
	State      *string  `json:"state"`
	Conclusion string   `json:"conclusion"`
	Labels     []string `json:"labels"`
	URL        string   `json:"url"`
}

// ParseScope returns the scope that the webhook claims to come from. It is untrusted until Verify
// succeeds.
func (Webhooks) ParseScope(_ http.Header, body []byte) (workload.Scope, error) {
	var claimed struct {
		Source *string `json:"source"`
	}
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, newPayloadError("%s", describeJSONError(err))
	}

	source, err := parseSource(claimed.Source)
	if err != nil {
		return workload.Scope{}, err
	}

	return workload.Scope{Repository: source}, nil
}

// ParseJob returns the job. Every webhook describes one.
func (Webhooks) ParseJob(_ http.Header, body []byte) (workload.Job, bool, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()

	var parsed payload
	if err := decoder.Decode(&parsed); err != nil {
		return workload.Job{}, false, newPayloadError("%s", describeJSONError(err))
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return workload.Job{}, false, newPayloadError("the JSON object is followed by more data")
	}

	job, err := parsed.toJob()

	return job, err == nil, err
}

// toJob validates a payload and converts it to a job. A conclusion is allowed only in state completed.
func (p *payload) toJob() (workload.Job, error) {
	source, err := parseSource(p.Source)
	if err != nil {
		return workload.Job{}, err
	}

	if p.ID == nil || *p.ID == "" {
		return workload.Job{}, newPayloadError("id is missing: set an id that is unique within the source")
	}

	state, err := parseState(p.State)
	if err != nil {
		return workload.Job{}, err
	}

	if p.Conclusion != "" && state != v1alpha1.JobCompleted {
		return workload.Job{}, newPayloadError("conclusion is only allowed for jobs in state completed")
	}

	if err := p.validate(); err != nil {
		return workload.Job{}, err
	}

	return workload.Job{
		Platform: v1alpha1.WorkloadGeneric, ID: *p.ID, Name: p.Name, Repository: source,
		URL: p.URL, Labels: p.Labels, State: state, Conclusion: p.Conclusion,
	}, nil
}

// validate checks the lengths and characters of the values that are stored in a RunnerJob and
// passed to the command's environment.
func (p *payload) validate() error {
	for _, text := range []struct {
		field, value string
		limit        int
	}{
		{"id", *p.ID, maxIDLength}, {"name", p.Name, maxNameLength}, {"conclusion", p.Conclusion, workload.MaxConclusionLength},
		{"url", p.URL, workload.MaxURLLength},
	} {
		if err := validateText(text.field, text.value, text.limit); err != nil {
			return err
		}
	}

	if p.URL != "" && !isHTTP(p.URL) {
		return newPayloadError("url must begin with http:// or https:// and name a host")
	}

	if len(p.Labels) > workload.MaxLabels {
		return newPayloadError("labels has %d entries, which is more than %d", len(p.Labels), workload.MaxLabels)
	}

	for i, label := range p.Labels {
		field := fmt.Sprintf("labels[%d]", i)

		switch {
		case strings.TrimSpace(label) == "":
			return newPayloadError("%s is empty", field)
		case strings.Contains(label, labelSeparator):
			return newPayloadError("%s contains a comma, which separates the labels in %s", field, EnvJobLabels)
		}

		if err := validateText(field, label, workload.MaxLabelLength); err != nil {
			return err
		}
	}

	return nil
}

func validateText(field, value string, limit int) error {
	switch {
	case utf8.RuneCountInString(value) > limit:
		return newPayloadError("%s has more than %d characters", field, limit)
	case strings.ContainsFunc(value, unicode.IsControl):
		return newPayloadError("%s contains a control character, such as a line break", field)
	default:
		return nil
	}
}

func parseSource(source *string) (string, error) {
	switch {
	case source == nil || *source == "":
		return "", newPayloadError("source is missing: set it to the pool's workload.config.generic.source")
	case len(*source) > maxSourceLength || !sourcePattern.MatchString(*source):
		return "", newPayloadError("source must be a name of at most %d letters, digits, '_', '.', '/' and '-'", maxSourceLength)
	default:
		return *source, nil
	}
}

func parseState(state *string) (v1alpha1.JobState, error) {
	value := "queued"
	if state != nil {
		value = *state
	}

	switch value {
	case "queued":
		return v1alpha1.JobQueued, nil
	case "running":
		return v1alpha1.JobRunning, nil
	case "completed":
		return v1alpha1.JobCompleted, nil
	default:
		return "", newPayloadError("state must be queued, running or completed")
	}
}

func isHTTP(text string) bool {
	u, err := url.Parse(text)

	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

func newPayloadError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrPayload, fmt.Sprintf(format, args...))
}

// describeJSONError explains a JSON error. It quotes the names of fields and never their values.
func describeJSONError(err error) string {
	var (
		syntax   *json.SyntaxError
		mismatch *json.UnmarshalTypeError
	)

	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &mismatch):
		return fmt.Sprintf("%s: expected a %s, got %s", cmp.Or(mismatch.Field, "body"), typeName(mismatch.Type), mismatch.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "not valid JSON: the body is incomplete"
	default: // an unknown field, which the error names
		return strings.TrimPrefix(err.Error(), "json: ") + ": known fields are id, source, name, state, conclusion, labels and url"
	}
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "list of strings"
	case reflect.Struct:
		return "JSON object"
	default:
		return t.String()
	}
}
