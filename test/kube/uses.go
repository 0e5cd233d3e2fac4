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

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// Use is one verb of Kubernetes' RBAC on one kind's objects, or on one object. Resource has
// its subresource behind a slash.
type Use struct{ Verb, Group, Resource, Name string }

// String is as in "get secrets", "patch leases.coordination.k8s.io" or
// "get namespaces kube-system".
func (u Use) String() string {
	text := u.Verb + " " + u.Resource
	if u.Group != "" {
		text += "." + u.Group
	}

	return strings.TrimSuffix(text+" "+u.Name, " ")
}

// EveryArea is the account of what the operator does whatever areas it runs.
const EveryArea = "every area"

// uses are what the accounts of areas did to an API server.
type uses struct {
	mu   sync.Mutex
	seen map[string]map[Use]bool
}

// errUnused and errUndeclared are what checks of uses find.
var (
	errUnused     = errors.New("no test of this program uses it")
	errUndeclared = errors.New("no rule of the account allows it")
)

// WithUses fails a run of all tests of the program in which the account of an area did not
// do everything that the file says it does in this program, or did what the file knows
// nothing of. The file has the uses by account and program, and test/access holds roles to
// it. What Manage runs has the account given; others come from Record.
func WithUses(file, program, account string) Option {
	return func(o *options) { o.uses, o.program, o.account = file, program, account }
}

// Record is the configuration of a client that does as the given one, and is an area's
// account: what it does is recorded.
func (e *Env) Record(account string, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/json" // owners are read from it
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
			e.uses.add(account, r)

			return next.RoundTrip(r)
		})
	})

	return config
}

// ClientAs is a client that is an area's account, as Record makes it.
func (e *Env) ClientAs(account string) (client.Client, error) {
	return client.New(e.Record(account, e.Config), client.Options{Scheme: e.Scheme})
}

func (u *uses) add(account string, r *http.Request) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.seen[account] == nil {
		u.seen[account] = map[Use]bool{}
	}

	for _, use := range usesOf(r) {
		u.seen[account][use] = true
		use.Name = ""
		u.seen[account][use] = true
	}
}

// usesOf are the rights that a request needs (Kubernetes, "Determine the request verb").
func usesOf(r *http.Request) []Use {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")

	var use Use

	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		use.Group, parts = parts[1], parts[3:]
	default:
		return nil // discovery, which everybody may do
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
		return reads(r, use)
	}

	return append(owning(r), use)
}

// owning are the rights that a write needs, where servers ask for them, to keep owners from
// going before what they own: those of the owners' finalizers (Kubernetes, "Admission
// control", OwnerReferencesPermissionEnforcement).
func owning(r *http.Request) []Use {
	if r.GetBody == nil {
		return nil
	}

	body, err := r.GetBody()
	if err != nil {
		return nil
	}
	defer body.Close() //nolint:errcheck // it is read from memory

	var object metav1.PartialObjectMetadata
	if json.NewDecoder(body).Decode(&object) != nil {
		return nil // a list of patches
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

// reads are the rights that a read needs. A watch that begins with what there is takes the
// place of a list, which servers before 1.32 are asked for.
func reads(r *http.Request, use Use) []Use {
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

// checkUses does so for the program's options.
func (e *Env) checkUses(opts []Option) error {
	var chosen options
	for _, opt := range opts {
		opt(&chosen)
	}

	return e.uses.check(chosen.uses, chosen.program)
}

// check holds what was recorded against the file, if the whole program's tests have run.
func (u *uses) check(file, program string) error {
	if file == "" || !wholeRun() {
		return nil
	}

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
		for use := range u.seen[account] {
			seen[use.String()] = true
		}

		for _, use := range programs[program] {
			if !seen[use] {
				errs = append(errs, fmt.Errorf("%s: %s %q in %s: %w", account, program, use, file, errUnused))
			}
		}
	}

	for account := range u.seen {
		for use := range u.seen[account] {
			if !allowed(declared[account], use) && !allowed(declared[EveryArea], use) {
				errs = append(errs, fmt.Errorf("%s: %q in %s: %w", account, use, file, errUndeclared))
			}
		}
	}

	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })

	return errors.Join(errs...)
}

// allowed says whether one of the programs is said to make the use. Of a use of an object
// there is a record without its name, too: that one is not allowed where no row knows the
// kind, and else it is the name that matters.
func allowed(programs map[string][]string, use Use) bool {
	unnamed := use
	unnamed.Name = ""

	known := false

	for _, rows := range programs {
		for _, row := range rows {
			if row == unnamed.String() || row == use.String() {
				return true
			}

			known = known || strings.HasPrefix(row, unnamed.String()+" ")
		}
	}

	return known == (use.Name == "")
}

// wholeRun says whether no flag keeps tests from running, but for those that `make test` leaves to `make e2e`.
func wholeRun() bool {
	for name, all := range map[string][]string{
		"test.run": {"", "."}, "test.list": {""}, "test.fuzz": {""}, "test.short": {"false"},
	} {
		if f := flag.Lookup(name); f != nil && !slices.Contains(all, f.Value.String()) {
			return false
		}
	}

	skip := flag.Lookup("test.skip")

	return skip == nil || !slices.ContainsFunc(strings.Split(skip.Value.String(), "|"), func(part string) bool {
		// hack/testrun tells the checkout by a pattern that no test has.
		return part != "" && part != "SPIRE" && part != "Upstream" && !strings.HasPrefix(part, "^checkout ")
	})
}
