// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// Use is an RBAC verb on all objects of a resource, or on the object with a name. Resource may end with a
// slash and a subresource.
type Use struct{ Verb, Group, Resource, Name string }

// String formats the use, for example as "get secrets", "patch leases.coordination.k8s.io" or
// "get namespaces kube-system".
func (u Use) String() string {
	text := u.Verb + " " + u.Resource
	if u.Group != "" {
		text += "." + u.Group
	}

	return strings.TrimSuffix(text+" "+u.Name, " ")
}

// EveryArea is the account whose uses are allowed for all areas of the operator.
const EveryArea = "every area"

// useRecorder records the API calls of the areas' accounts.
type useRecorder struct {
	mu    sync.Mutex
	calls map[string]map[Use]bool
}

// Errors of the comparison of recorded and declared uses.
var (
	errUnused     = errors.New("the use is declared, but no test of this program makes the call")
	errUndeclared = errors.New("the account makes the call, but the use is not declared")
)

// usesFile declares the uses of accounts by account and program.
const usesFile = "test/access/testdata/uses.yaml"

// WithUses compares the API calls of the areas' accounts with the file that declares the uses by account and
// program. test/access compares the RBAC roles with the same file. If all tests of the program were run,
// the run fails if an account has not made a declared call, or has made a call that is not declared. The
// manager of StartManager has the given account. RecordUses sets the account of other clients.
func WithUses(account string) Option {
	return func(o *options) { o.comparesUses, o.account = true, account }
}

// RecordUses returns a copy of a client configuration whose calls are recorded as uses of an area's account.
func (e *Env) RecordUses(account string, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/json" // ownerUses decodes request bodies
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			e.uses.add(account, r)

			return next.RoundTrip(r)
		})
	})

	return config
}

// ClientAs returns a client whose calls are recorded as uses of an area's account (RecordUses).
func (e *Env) ClientAs(account string) (client.Client, error) {
	return client.New(e.RecordUses(account, e.Config), client.Options{Scheme: e.Scheme})
}

// add records the uses of a request, with and without the name of the object.
func (u *useRecorder) add(account string, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.calls[account] == nil {
		u.calls[account] = map[Use]bool{}
	}

	for _, use := range requestUses(r) {
		u.calls[account][use] = true
		use.Name = ""
		u.calls[account][use] = true
	}
}

// requestUses returns the permissions that a request needs (Kubernetes, "Determine the request verb").
func requestUses(r *http.Request) []Use {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	var use Use

	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		use.Group, parts = parts[1], parts[3:]
	default:
		return nil // discovery, which every user may call
	}

	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
		parts = parts[2:]
	}

	use.Resource = parts[0]
	if len(parts) > 1 {
		use.Name = parts[1]
	}

	if len(parts) > 2 {
		use.Resource += "/" + parts[2]
	}

	switch r.Method {
	case http.MethodPost:
		use.Verb = "create"
	case http.MethodPut:
		use.Verb = "update"
	case http.MethodPatch:
		use.Verb = "patch"
	case http.MethodDelete:
		use.Verb = "delete"
	default:
		return readUses(r, use)
	}

	return append(ownerUses(r), use)
}

// ownerUses returns the permissions that a write with blocking owner references needs on the owners'
// finalizers. API servers require them if their admission plugin OwnerReferencesPermissionEnforcement is
// enabled (Kubernetes, "Admission control").
func ownerUses(r *http.Request) []Use {
	if r.GetBody == nil {
		return nil
	}

	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close() //nolint:errcheck // the body is in memory

	var object metav1.PartialObjectMetadata
	if json.NewDecoder(body).Decode(&object) != nil {
		return nil // a JSON patch is a list
	}

	var out []Use

	for _, owner := range object.OwnerReferences {
		if ptr.Deref(owner.BlockOwnerDeletion, false) {
			kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
			plural, _ := meta.UnsafeGuessKindToResource(kind)
			out = append(out, Use{Verb: "update", Group: kind.Group, Resource: plural.Resource + "/finalizers", Name: owner.Name})
		}
	}

	return out
}

// readUses returns the permissions that a read needs. A watch with initial events also needs permission to
// list, because the client lists from API servers before 1.32.
func readUses(r *http.Request, use Use) []Use {
	query := r.URL.Query()

	switch {
	case query.Get("watch") == "true" || query.Get("watch") == "1":
		use.Verb = "watch"
	case use.Name == "":
		use.Verb = "list"
	default:
		use.Verb = "get"
	}

	if !query.Has("sendInitialEvents") {
		return []Use{use}
	}

	list := use
	list.Verb = "list"

	return []Use{use, list}
}

// compareUses compares the recorded uses with the file of WithUses if all tests of the program have run.
func (e *Env) compareUses(opts []Option) error {
	var settings options
	for _, opt := range opts {
		opt(&settings)
	}

	if !settings.comparesUses || !isFullRun() {
		return nil
	}

	return e.uses.compare()
}

// compare compares the recorded uses with the file. The program has the name of the package's directory.
func (u *useRecorder) compare() error {
	root, err := procrun.FindModuleRoot()
	if err != nil {
		return fmt.Errorf("read uses of accounts: %w", err)
	}

	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("read uses of accounts: %w", err)
	}

	program, file := strings.TrimPrefix(filepath.ToSlash(dir), filepath.ToSlash(root)+"/"), filepath.Join(root, usesFile)

	raw, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read uses of accounts: %w", err)
	}

	declared := map[string]map[string][]string{}
	if err := yaml.UnmarshalStrict(raw, &declared); err != nil {
		return fmt.Errorf("read uses of accounts in %s: %w", file, err)
	}

	u.mu.Lock()
	defer u.mu.Unlock()

	var errs []error

	for account, programs := range declared {
		seen := map[string]bool{}
		for use := range u.calls[account] {
			seen[use.String()] = true
		}

		for _, use := range programs[program] {
			if !seen[use] {
				errs = append(errs, fmt.Errorf("%s: %s %q in %s: %w", account, program, use, file, errUnused))
			}
		}
	}

	for account := range u.calls {
		for use := range u.calls[account] {
			if !isDeclared(declared[account], use) && !isDeclared(declared[EveryArea], use) {
				errs = append(errs, fmt.Errorf("%s: %q in %s: %w", account, use, file, errUndeclared))
			}
		}
	}

	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })

	return errors.Join(errs...)
}

// isDeclared returns true if the file declares a use for one of the programs. Each use of a named object is
// recorded with and without the name. If a row declares the verb and resource with a name, isDeclared
// returns true for the use without a name, and for a use with a name only if a row has that name.
func isDeclared(programs map[string][]string, use Use) bool {
	unnamed := use
	unnamed.Name = ""

	isKnown := false

	for _, rows := range programs {
		for _, row := range rows {
			if row == unnamed.String() || row == use.String() {
				return true
			}

			isKnown = isKnown || strings.HasPrefix(row, unnamed.String()+" ")
		}
	}

	return isKnown == (use.Name == "")
}

// isFullRun returns true if no flag excludes tests, except the tests that `make test` leaves to `make e2e`.
func isFullRun() bool {
	for name, values := range map[string][]string{
		"test.run": {"", "."}, "test.list": {""}, "test.fuzz": {""}, "test.short": {"false"},
	} {
		if f := flag.Lookup(name); f != nil && !slices.Contains(values, f.Value.String()) {
			return false
		}
	}

	skip := flag.Lookup("test.skip")

	return skip == nil || SkipsOnlyE2E(skip.Value.String())
}

// SkipsOnlyE2E returns whether a pattern of the flag -skip excludes only the tests that `make test` leaves to `make e2e`.
func SkipsOnlyE2E(pattern string) bool {
	return !slices.ContainsFunc(strings.Split(pattern, "|"), func(part string) bool {
		// hack/testrun passes the checkout as a pattern that matches no test.
		return part != "" && part != "SPIRE" && part != `Upstream\b` && !strings.HasPrefix(part, "^checkout ")
	})
}
