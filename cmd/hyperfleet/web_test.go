// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/web"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// openPages returns the pages of a namespace with the permissions of a user.
func openPages(t *testing.T, user *rest.Config, namespace string) http.Handler {
	t.Helper()

	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)

	view, err := live.Connect(ctx, cli.Kube{Kubeconfig: env.Kubeconfig(t, user), Namespace: namespace})
	must.Do(t, err)

	view.Server = shownServer

	pages, err := web.NewHandler(web.Config{View: view, Clock: clock.RealClock{}, Hosts: []string{"fleet.example.com"}})
	must.Do(t, err)

	return pages
}

func getPage(t *testing.T, pages http.Handler, path string, edits ...func(*http.Request)) (int, string) {
	t.Helper()

	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost:8088"+path, http.NoBody)
	for _, edit := range edits {
		edit(request)
	}

	answer := httptest.NewRecorder()
	pages.ServeHTTP(answer, request)

	return answer.Code, answer.Body.String()
}

// TestPages checks the content of the pages, takes screenshots, and checks which requests are rejected.
func TestPages(t *testing.T) { //nolint:tparallel // one set of pages serves all
	t.Parallel()

	namespace := seedFleet(t)
	pages := openPages(t, env.Config, namespace)

	for path, want := range map[string][]string{
		"/":                                  {"jobs wait", "at maximum", "raise it, or wait", "no pool", "linux-large", "rack-b", "1 excluded", "Not ready", "image has no cloud-init"},
		"/pools":                             {"linux-small", "of 10", "bootstrap timeout"},
		"/pools/" + namespace + "/arm64":     {"Last failure: bootstrap timeout", "3 in a row", "<b>2</b><span>jobs wait"},
		"/jobs":                              {"integration (postgres)", "acme/checkout", "1 to 39 of 39", "RunnerPool linux-large has all 12"},
		"/jobs?state=Completed&q=acme%2Fapp": {"1 to 2 of 2"},
		"/jobs?page=99&state=Running":        {"1 to 9 of 9"},
		"/jobs?state=Queued%2CWaiting":       {"1 to 24 of 24", "Queued or waiting <span>24"},
		"/jobs?state=AtMaximum&pool=ci%2Flinux-large":        {"1 to 21 of 21", "Pool <b>ci/linux-large</b>"},
		"/jobs?state=Failed&q=REFUND":                        {"Nothing matches the filter", "Failed <span>0"},
		"/machines?state=Busy&pool=ci%2Flinux-large":         {"Busy <span>9", "Starting <span>3", "linux-large-m010"},
		"/jobs/" + namespace + "/github-actions-29679400020": {"linux-small-m020", "&lt;script&gt;alert(1)", "clean-up", "open at the CI platform", "deleted"},
		"/jobs/" + namespace + "/github-actions-29679400040": {`Waiting: <a href="/jobs?state=AtMaximum">at maximum</a>`, "so far"},
		"/machines": {"linux-large-m010", "rack-a-3", "100110"},
		"/machines/" + namespace + "/linux-large-m010": {"192.0.2.20", "the runner took a job", "github-actions-29679400010", "booting"},
		"/clusters":        {"rack-a", "proxmox 9.2"},
		"/clusters/rack-b": {"rack-b-2", "no space left on device", "58 of 64"},
		"/hosts":           {"racks", "no route to host", "1 of 2 hosts converged"},
		"/bridges":         {"prod-cluster", "etcd 2 of 3", "prod-dpu-cluster"},
	} {
		code, body := getPage(t, pages, path)
		if code != http.StatusOK || !strings.HasSuffix(strings.TrimSpace(body), "</html>") {
			t.Errorf("%s: %d\n%s", path, code, body)
		}

		for _, part := range want {
			if !strings.Contains(strings.ToLower(body), strings.ToLower(part)) {
				t.Errorf("%s lacks %q:\n%s", path, part, body)
			}
		}
	}

	for _, path := range []string{"/jobs/ci/y", "/pools/ci/y", "/machines/ci/y", "/clusters/none", "/elsewhere", "/style.css/x"} {
		if code, body := getPage(t, pages, path); code != http.StatusNotFound || !strings.Contains(body, "Not found") {
			t.Errorf("%s: %d", path, code)
		}
	}

	t.Run("filters", func(t *testing.T) { checkFilters(t, pages) })
	t.Run("states", func(t *testing.T) { checkStateLinks(t, pages, namespace) })
	t.Run("typing", func(t *testing.T) { checkTyping(t, pages) })
	t.Run("phone", func(t *testing.T) { checkPhone(t, pages) })
	t.Run("callers", func(t *testing.T) { checkCallers(t, pages) })
	t.Run("pictures", func(t *testing.T) { takeScreenshots(t, pages, namespace) })
}

// checkFilters checks which rows the filters of lists select.
func checkFilters(t *testing.T, pages http.Handler) {
	t.Helper()

	for path, want := range map[string]struct{ shown, hidden string }{
		"/pools?state=MachinesFailing":      {"arm64", "linux-small"},
		"/pools?state=NotReady":             {"arm64", "linux-small"},
		"/pools?state=Ready&q=SMALL":        {"linux-small", "linux-large"},
		"/machines?state=Bootstrapping":     {"linux-large-m003", "linux-large-m010"},
		"/machines?state=Idle":              {"linux-small-m050", "linux-large-m010"},
		"/machines?q=rack-a-3+m010":         {"linux-large-m010", "linux-large-m014"},
		"/clusters?q=rack-b":                {"/clusters/rack-b", "/clusters/rack-a"},
		"/clusters/rack-b?state=Excluded":   {"rack-b-2", "rack-b-1"},
		"/clusters/rack-b?q=rack-b-1":       {"rack-b-1", "rack-b-2"},
		"/hosts?state=Unreachable":          {"rack-2", "<td>rack-1</td>"},
		"/hosts?q=rack-1":                   {"<td>rack-1</td>", "<td>rack-2</td>"},
		"/hosts?state=HostsUnreachable":     {"<td>rack-1</td>", "Nothing matches"},
		"/bridges?state=Provisioning":       {"prod-cluster", "Nothing matches"},
		"/bridges?state=Ready":              {"Nothing matches", "prod-dpu-cluster"},
		"/jobs?state=failure&q=integration": {"integration (postgres)", "unit tests"},
	} {
		code, body := getPage(t, pages, path)
		if code != http.StatusOK || !strings.Contains(body, want.shown) || strings.Contains(body, want.hidden) {
			t.Errorf("%s: %d, want %q and not %q:\n%s", path, code, want.shown, want.hidden, body)
		}
	}
}

var (
	stateLink = regexp.MustCompile(`href="([^"]*[?&;]state=[^"]*)"`)
	countLink = regexp.MustCompile(`<a href="([^"]+)"[^>]*>[^<]+ <span>(\d+)</span></a>`)
	tableRow  = regexp.MustCompile(`<tr>\s*<td`)
)

// checkStateLinks checks that all states on pages are links to lists, and that lists have as many rows as the links
// to them say.
func checkStateLinks(t *testing.T, pages http.Handler, namespace string) {
	t.Helper()

	links := map[string]bool{}

	for _, path := range []string{
		"/", "/pools", "/jobs", "/machines", "/clusters", "/hosts", "/bridges", "/clusters/rack-b", "/pools/" + namespace + "/arm64",
		"/machines/" + namespace + "/linux-large-m010", "/jobs/" + namespace + "/github-actions-29679400020",
		"/jobs/" + namespace + "/github-actions-29679400040",
	} {
		_, body := getPage(t, pages, path)
		if strings.Contains(body, `<span class="pill`) {
			t.Errorf("%s has a state without a link:\n%s", path, body)
		}

		found := stateLink.FindAllStringSubmatch(body, -1)
		if len(found) == 0 {
			t.Errorf("%s has no links to states", path)
		}

		for _, link := range found {
			links[html.UnescapeString(link[1])] = true
		}

		if path == "/clusters/rack-b" {
			continue // has a table of conditions, too
		}

		for _, link := range countLink.FindAllStringSubmatch(body, -1) {
			_, list := getPage(t, pages, html.UnescapeString(link[1]))
			if got := len(tableRow.FindAllString(list, -1)); strconv.Itoa(got) != link[2] {
				t.Errorf("%s: the link %s has the number %s, but the list has %d rows", path, link[1], link[2], got)
			}
		}
	}

	for link := range links {
		if code, body := getPage(t, pages, link); code != http.StatusOK || !strings.Contains(body, `aria-current="true">`) {
			t.Errorf("%s: %d, no state is selected:\n%s", link, code, body)
		}
	}
}

// TestPagesOfNamespaces checks the responses for namespaces that do not exist, that are not shown, and that the user has
// no permission to read.
func TestPagesOfNamespaces(t *testing.T) {
	t.Parallel()

	namespace := seedFleet(t)

	type response struct {
		code int
		text string
	}

	for shown, responses := range map[string]map[string]response{
		"nowhere": {
			"/":                {http.StatusNotFound, "namespace nowhere does not exist"},
			"/jobs":            {http.StatusNotFound, "namespace nowhere does not exist"},
			"/pools/nowhere/x": {http.StatusNotFound, "not found"},
		},
		"default": {
			"/":                              {http.StatusOK, "There are no pools"},
			"/pools/" + namespace + "/arm64": {http.StatusNotFound, "only objects of namespace default are shown"},
			"/jobs/" + namespace + "/x":      {http.StatusNotFound, "only objects of namespace default are shown"},
			"/machines/" + namespace + "/x":  {http.StatusNotFound, "only objects of namespace default are shown"},
		},
	} {
		pages := openPages(t, env.Config, shown)

		for path, want := range responses {
			if code, body := getPage(t, pages, path); code != want.code || !strings.Contains(body, want.text) {
				t.Errorf("-n %s, %s: %d, want %d and %q:\n%s", shown, path, code, want.code, want.text, body)
			}
		}
	}

	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "web-clusters"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"hypervisorclusters"}, Verbs: []string{"list", "watch"},
	}}}
	env.Create(t, role)
	env.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "web-clusters"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})

	pages := openPages(t, env.User(t, "web-clusters"), namespace)

	for path, code := range map[string]int{
		"/": http.StatusOK, "/pools": http.StatusForbidden, "/pools/" + namespace + "/arm64": http.StatusForbidden,
	} {
		if got, body := getPage(t, pages, path); got != code || !strings.Contains(body, "no permission to list RunnerPools in namespace "+namespace) {
			t.Errorf("%s: %d, want %d:\n%s", path, got, code, body)
		}
	}
}

// checkCallers checks the responses to requests from other sites, for other host names, and with other methods.
func checkCallers(t *testing.T, pages http.Handler) {
	t.Helper()

	for name, tc := range map[string]struct {
		edit func(*http.Request)
		want int
	}{
		"an address":              {func(r *http.Request) { r.Host = "127.0.0.1:8088" }, http.StatusOK},
		"an IPv6 address":         {func(r *http.Request) { r.Host = "[::1]:8088" }, http.StatusOK},
		"a proxy's name":          {func(r *http.Request) { r.Host = "Fleet.example.com" }, http.StatusOK},
		"a name that was rebound": {func(r *http.Request) { r.Host = "attacker.example:8088" }, http.StatusForbidden},
		"a name like ours":        {func(r *http.Request) { r.Host = "localhost.attacker.example" }, http.StatusForbidden},
		"no name":                 {func(r *http.Request) { r.Host = "" }, http.StatusForbidden},
		"an address of others":    {func(r *http.Request) { r.Host = "192.0.2.1:8088" }, http.StatusForbidden},
		"a write":                 {func(r *http.Request) { r.Method = http.MethodPost }, http.StatusMethodNotAllowed},
		"a frame of another site": {func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }, http.StatusForbidden},
		"a link from another site": {func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			r.Header.Set("Sec-Fetch-Mode", "navigate")
		}, http.StatusOK},
	} {
		if code, _ := getPage(t, pages, "/pools", tc.edit); code != tc.want {
			t.Errorf("%s: %d, want %d", name, code, tc.want)
		}
	}

	answer := httptest.NewRecorder()
	pages.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/live.js", http.NoBody))

	if policy := answer.Header().Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q", policy)
	}
}

// TestViewsWithoutPermissions checks that opening a view fails if the user can list no kind.
func TestViewsWithoutPermissions(t *testing.T) {
	t.Parallel()

	namespace := env.Namespace(t)
	kubeconfig := cli.Kube{Kubeconfig: env.Kubeconfig(t, env.User(t, "web-unprivileged"))}

	cluster, err := kubeconfig.Connect(live.AddToScheme)
	must.Do(t, err)

	if _, err := live.Open(t.Context(), cluster, namespace); err == nil || !strings.Contains(err.Error(), "no permission to list RunnerPools in namespace "+namespace) {
		t.Errorf("error %v", err)
	}
}

// TestManyJobs logs how long pages take with many jobs, with 5,000 jobs in a soak test.
func TestManyJobs(t *testing.T) {
	t.Parallel()

	jobs := 1000
	if property.IsSoak() {
		jobs = 5000
	}

	namespace := env.Namespace(t)
	(&seeder{t, namespace, time.Now()}).manyJobs(jobs)

	pages := openPages(t, env.Config, namespace)

	for _, path := range []string{"/", "/jobs", "/jobs?q=checkout&page=3"} {
		var took []time.Duration

		for range 5 {
			start := time.Now()

			code, body := getPage(t, pages, path)
			took = append(took, time.Since(start))

			if code != http.StatusOK || len(body) > 1<<20 {
				t.Fatalf("%s: %d, %d bytes", path, code, len(body))
			}
		}

		t.Logf("%s with %d jobs: %s", path, jobs, slices.Min(took))
	}

	if code, body := getPage(t, pages, "/jobs"); code != http.StatusOK || !strings.Contains(body, fmt.Sprintf("1 to 100 of %d", jobs)) {
		t.Errorf("%d: %s", code, body)
	}

	logFirstPaint(t, pages, "/")
}

// TestWebCommand checks that the command serves on loopback until an interrupt, and that it rejects addresses that are
// reachable from other machines.
func TestWebCommand(t *testing.T) {
	t.Parallel()

	for _, args := range [][]string{
		{"--bind-address", ":8088"}, {"--bind-address", "192.0.2.1:80"}, {"--bind-address", "8088"}, {"--colour"},
	} {
		execute(t, nil, append([]string{"web"}, args...)...).expectFailure(t, cli.ExitUsage)
	}

	namespace := env.Namespace(t)
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()

	ended := make(chan error, 1)

	go func() {
		ended <- run(ctx, t, strings.NewReader(""), write, env.Config, "web", "--bind-address", "127.0.0.1:0", "-n", namespace)
	}()

	line := make([]byte, 512)

	n, err := read.Read(line)
	must.Do(t, err)

	address, _, _ := strings.Cut(string(line[:n]), " ")

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/pools", http.NoBody)
	must.Do(t, err)

	response, err := http.DefaultClient.Do(request)
	must.Do(t, err)

	_ = response.Body.Close()

	if response.StatusCode != http.StatusOK {
		t.Errorf("%s", response.Status)
	}

	http.DefaultClient.CloseIdleConnections()
	stop()

	if err := <-ended; err != nil {
		t.Error(err)
	}
}
