// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/workload/generic"
)

const genericGuide = "../../docs/guides/generic.md"

// TestGenericGuide checks that the guide's JSON is a valid job, and that its shell commands send a job with a
// valid signature.
func TestGenericGuide(t *testing.T) {
	t.Parallel()

	raw, err := os.ReadFile(genericGuide)
	if err != nil {
		t.Fatal(err)
	}

	block := func(language string) string {
		found := regexp.MustCompile("(?s)```" + language + "\n(.*?)```").FindStringSubmatch(string(raw))
		if found == nil {
			t.Fatalf("the guide has no %s block", language)
		}

		return found[1]
	}

	if job, ok, err := (generic.Webhooks{}).ParseJob(nil, []byte(block("json"))); err != nil || !ok || job.ID != "scan-4711" {
		t.Errorf("%+v, %t, %v", job, ok, err)
	}

	for _, tool := range []string{"openssl", "curl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}

	const secret = "a plain secret"

	verified := make(chan error, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = generic.Webhooks{}.Verify(r.Header, body, []byte(secret))
		}

		if err == nil {
			_, _, err = generic.Webhooks{}.ParseJob(r.Header, body)
		}

		verified <- err

		if r.URL.Path != "/webhooks/generic" || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" {
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(server.Close)

	cmd := exec.Command("sh", "-e", "-c", block("sh"))
	cmd.Env = append(os.Environ(), "SECRET="+secret, "OPERATOR="+server.URL, "no_proxy=*")

	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, strings.TrimSpace(string(out)))
	}

	if err := <-verified; err != nil {
		t.Error(err)
	}
}
