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

// Limits of a RunnerJob's fields, in characters, beside those of all platforms.
const (
	maxID     = 128
	maxName   = 1024
	maxSource = 255
)

// ErrPayload says that a body is no job. The text that wraps it names the field and the
// fix.
var ErrPayload = errors.New("webhook body is not a job")

// sourceName is the pattern of workload.config.generic.source.
var sourceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_./-]*$`)

// Webhooks reads the webhooks of a source. The zero value is ready.
type Webhooks struct {
	// Clock judges the age of signatures. Default: the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

// payload is the webhook's body. Pointers tell what is missing from what is empty.
type payload struct {
	ID         *string  `json:"id"`
	Source     *string  `json:"source"`
	Name       string   `json:"name"`
	State      *string  `json:"state"`
	Conclusion string   `json:"conclusion"`
	Labels     []string `json:"labels"`
	URL        string   `json:"url"`
}

// Scope reads whose webhook it claims to be. Nothing of it is to be trusted before
// Verify.
func (Webhooks) Scope(_ http.Header, body []byte) (workload.Scope, error) {
	var claimed struct {
		Source *string `json:"source"`
	}
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, invalid("%s", describe(err))
	}

	source, err := readSource(claimed.Source)
	if err != nil {
		return workload.Scope{}, err
	}

	return workload.Scope{Repository: source}, nil
}

// Parse reads the job. Every webhook speaks of one.
func (Webhooks) Parse(_ http.Header, body []byte) (workload.Job, bool, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()

	var in payload
	if err := decoder.Decode(&in); err != nil {
		return workload.Job{}, false, invalid("%s", describe(err))
	}

	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return workload.Job{}, false, invalid("something follows the end of the JSON object")
	}

	job, err := in.job()

	return job, err == nil, err
}

func (p *payload) job() (workload.Job, error) {
	source, err := readSource(p.Source)
	if err != nil {
		return workload.Job{}, err
	}

	if p.ID == nil || *p.ID == "" {
		return workload.Job{}, invalid("id is missing: it tells the job from all others of its source")
	}

	state, err := stateOf(p.State)
	if err != nil {
		return workload.Job{}, err
	}

	if p.Conclusion != "" && state != v1alpha1.JobCompleted {
		return workload.Job{}, invalid("conclusion is for jobs in state completed")
	}

	if err := p.check(); err != nil {
		return workload.Job{}, err
	}

	return workload.Job{
		Platform: v1alpha1.WorkloadGeneric, ID: *p.ID, Name: p.Name, Repository: source,
		URL: p.URL, Labels: p.Labels, State: state, Conclusion: p.Conclusion,
	}, nil
}

// check looks at the lengths and characters of what goes into the ledger, and into the
// environment of a command.
func (p *payload) check() error {
	for _, text := range []struct {
		field, value string
		limit        int
	}{
		{"id", *p.ID, maxID}, {"name", p.Name, maxName}, {"conclusion", p.Conclusion, workload.MaxConclusion},
		{"url", p.URL, workload.MaxURL},
	} {
		if err := checkText(text.field, text.value, text.limit); err != nil {
			return err
		}
	}

	if p.URL != "" && !isHTTP(p.URL) {
		return invalid("url must begin with http:// or https:// and name a host")
	}

	if len(p.Labels) > workload.MaxLabels {
		return invalid("labels has %d entries, at most %d are possible", len(p.Labels), workload.MaxLabels)
	}

	for i, label := range p.Labels {
		field := fmt.Sprintf("labels[%d]", i)

		switch {
		case strings.TrimSpace(label) == "":
			return invalid("%s is empty", field)
		case strings.Contains(label, labelSeparator):
			return invalid("%s holds a comma, which separates the labels in %s", field, EnvJobLabels)
		}

		if err := checkText(field, label, workload.MaxLabel); err != nil {
			return err
		}
	}

	return nil
}

func checkText(field, value string, limit int) error {
	switch {
	case utf8.RuneCountInString(value) > limit:
		return invalid("%s has more than %d characters", field, limit)
	case strings.ContainsFunc(value, unicode.IsControl):
		return invalid("%s holds a control character, such as an end of a line", field)
	default:
		return nil
	}
}

func readSource(source *string) (string, error) {
	switch {
	case source == nil || *source == "":
		return "", invalid("source is missing: it is what a pool has in workload.config.generic.source")
	case len(*source) > maxSource || !sourceName.MatchString(*source):
		return "", invalid("source must be a name of at most %d letters, digits, '_', '.', '/' and '-'", maxSource)
	default:
		return *source, nil
	}
}

func stateOf(state *string) (v1alpha1.JobState, error) {
	word := "queued"
	if state != nil {
		word = *state
	}

	switch word {
	case "queued":
		return v1alpha1.JobQueued, nil
	case "running":
		return v1alpha1.JobRunning, nil
	case "completed":
		return v1alpha1.JobCompleted, nil
	default:
		return "", invalid("state must be queued, running or completed")
	}
}

func isHTTP(text string) bool {
	u, err := url.Parse(text)

	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrPayload, fmt.Sprintf(format, args...))
}

// describe says in words what is wrong with JSON. It quotes names of fields, and no
// values.
func describe(err error) string {
	var (
		syntax *json.SyntaxError
		typed  *json.UnmarshalTypeError
	)

	switch {
	case errors.As(err, &syntax):
		return fmt.Sprintf("not valid JSON at byte %d", syntax.Offset)
	case errors.As(err, &typed):
		return fmt.Sprintf("%s: a %s is wanted, not a %s", cmp.Or(typed.Field, "body"), kindName(typed.Type), typed.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "not valid JSON: it ends too early"
	default: // an unknown field, which the text names
		return strings.TrimPrefix(err.Error(), "json: ") + ": fields are id, source, name, state, conclusion, labels and url"
	}
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Slice:
		return "list of strings"
	case reflect.Struct:
		return "JSON object"
	default:
		return t.String()
	}
}
