// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates_test

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
)

var update = flag.Bool("update", false, "write the diagram to the guide")

// state is an alias that keeps the table short.
type state = gates.State

// TestNamedCases has a case for each reason. TestEveryCombination covers all states.
func TestNamedCases(t *testing.T) {
	t.Parallel()

	const (
		absent, managed, deleting = gates.Absent, gates.Managed, gates.Deleting
		detached, unmanaged       = gates.Detached, gates.Unmanaged
		older, equal, changed     = gates.Older, gates.Current, gates.Changed
		yes, no, bad              = gates.True, gates.False, gates.Error
	)

	cases := []struct {
		name    string
		state   gates.State
		outcome gates.Outcome
		reason  gates.Reason
		actions []gates.Action
	}{
		{"first event creates", state{Object: absent}, gates.Act, gates.ReasonCreate, newActions(gates.Apply)},
		{"same generation is left", state{Object: managed, Content: equal}, gates.Skip, gates.ReasonUnchanged, nil},
		{"older object is applied", state{Object: managed, Content: older}, gates.Act, gates.ReasonGeneration, newActions(gates.Apply)},
		{"another content is applied", state{Object: managed, Content: changed}, gates.Act, gates.ReasonContent, newActions(gates.Apply)},
		{"marks that prove nothing fail", state{Object: gates.Unproven, Delete: yes, ResourceDeleting: true}, gates.Fail, gates.ReasonUnproven, nil},
		{"detached, and still wanted", state{Object: detached, Detach: yes}, gates.Skip, gates.ReasonDetached, nil},
		{"detached, and no longer wanted", state{Object: detached}, gates.Fail, gates.ReasonDetached, nil},
		{"detached by hand, and deleted", state{Object: gates.DetachedUnproven, ResourceDeleting: true, Delete: yes}, gates.Fail, gates.ReasonDetached, nil},
		{"stale event writes nothing", state{Object: managed, Stale: true, HasRetention: true, Recreate: yes, Patch: newValues(yes)}, gates.Skip, gates.ReasonStale, nil},
		{"stale event still deletes", state{Object: managed, Stale: true, Delete: yes}, gates.Act, gates.ReasonDelete, newActions(gates.Delete)},
		{"detach wins over delete", state{Object: managed, Detach: yes, Delete: yes}, gates.Act, gates.ReasonDetach, newActions(gates.Detach)},
		{"redelivery after detach", state{Object: detached, ResourceDeleting: true, Detach: no, Delete: yes}, gates.Skip, gates.ReasonDetached, nil},
		{"delete goes before a false when", state{Object: managed, When: no, Delete: yes}, gates.Act, gates.ReasonDelete, newActions(gates.Delete)},
		{"deleted already", state{Object: absent, Delete: yes}, gates.Skip, gates.ReasonObjectNotFound, nil},
		{"a foreign object is not deleted", state{Object: unmanaged, Delete: yes}, gates.Skip, gates.ReasonNotManaged, nil},
		{"a foreign object on a delete event", state{Object: unmanaged, ResourceDeleting: true, Detach: bad}, gates.Skip, gates.ReasonNotManaged, nil},
		{"a false apply.when goes before the comparison", state{Object: managed, Content: equal, Apply: no}, gates.Skip, gates.ReasonApplyWhen, nil},
		{"create-only leaves a foreign object", state{Object: unmanaged, Apply: no}, gates.Skip, gates.ReasonApplyWhen, nil},
		{"recreate with retention prunes", state{Object: managed, Recreate: yes, HasRetention: true}, gates.Act, gates.ReasonRecreate, newActions(gates.Recreate, gates.Prune)},
		{"recreate waits for the deletion", state{Object: deleting, Recreate: yes}, gates.Skip, gates.ReasonDeletionPending, nil},
		{"nothing is applied to a deleting object", state{Object: deleting, Content: older}, gates.Skip, gates.ReasonDeletionPending, nil},
		{"patches in order, no apply", state{Object: managed, Content: older, Patch: newValues(yes, no, yes)}, gates.Act, gates.ReasonPatch, []gates.Action{{Verb: gates.Patch}, {Verb: gates.Patch, Index: 2}}},
		{"patch-only without a patch", state{Object: managed, Content: older, PatchOnly: true, Patch: newValues(no)}, gates.Skip, gates.ReasonNoManifest, nil},
	}

	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()

			got := gates.Decide(test.state)
			if got.Outcome != test.outcome || got.Reason != test.reason {
				t.Errorf("%s %s, want %s %s\n%v", got.Outcome, got.Reason, test.outcome, test.reason, got.Path)
			}

			if diff := cmp.Diff(test.actions, got.Actions); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func newValues(values ...gates.Value) []gates.Value { return values }

func newActions(verbs ...gates.Verb) []gates.Action {
	out := make([]gates.Action, len(verbs))
	for i, verb := range verbs {
		out[i].Verb = verb
	}

	return out
}

func TestValues(t *testing.T) {
	t.Parallel()

	if gates.ValueOf(true, nil) != gates.True || gates.ValueOf(false, nil) != gates.False || gates.ValueOf(true, errors.New("x")) != gates.Error {
		t.Error("the value of a gate has changed")
	}
}

// rule is a rule of the documentation that must hold for all states.
type rule struct {
	name string
	// then must be true for the decision if `if` is true for the state.
	when func(gates.State) bool
	then func(gates.State, gates.Decision) bool
}

func isWrite(d gates.Decision) bool {
	return slices.ContainsFunc(d.Actions, func(a gates.Action) bool { return a.Verb != gates.Prune })
}

// newRules returns rules that were written from the documentation and not from the code.
func newRules() []rule {
	passes := func(v gates.Value) bool { return v == gates.Unset || v == gates.True }
	fires := func(v gates.Value) bool { return v == gates.True }
	off := func(v gates.Value) bool { return v == gates.Unset || v == gates.False }
	there := func(st gates.State) bool { return st.Object == gates.Managed || st.Object == gates.Deleting }
	anyPatch := func(st gates.State, v gates.Value) bool { return slices.Contains(st.Patch, v) }
	// below returns true if the when gate is evaluated.
	below := func(st gates.State) bool {
		return !st.Stale && !isReleased(st) && st.Object != gates.Unproven && (st.Object != gates.Unmanaged || !st.ResourceDeleting) && off(st.Detach) && off(st.Delete)
	}
	none := func(_ gates.State, d gates.Decision) bool { return !isWrite(d) }
	only := func(verb gates.Verb) func(gates.State, gates.Decision) bool {
		return func(st gates.State, d gates.Decision) bool {
			count := 0
			for _, a := range d.Actions {
				if a.Verb == verb {
					count++
				} else if a.Verb != gates.Prune || !st.HasRetention {
					return false
				}
			}

			return count > 0
		}
	}

	return []rule{
		{"foreign and detached objects are never written", func(st gates.State) bool {
			return st.Object == gates.Unmanaged || st.Object == gates.Unproven || isReleased(st)
		}, none},
		{"a detached object counts as done only if its deletion is proven, or its gate is true", isReleased,
			func(st gates.State, d gates.Decision) bool {
				isDone := fires(st.Detach) || st.Object == gates.Detached && st.ResourceDeleting

				return (d.Outcome == gates.Skip) == isDone && len(d.Actions) == 0
			}},
		{"an object whose marks prove nothing never counts as done", func(st gates.State) bool { return st.Object == gates.Unproven },
			func(_ gates.State, d gates.Decision) bool {
				return d.Outcome == gates.Fail && d.Reason == gates.ReasonUnproven
			}},
		{"a failed decision does nothing at all", func(gates.State) bool { return true },
			func(_ gates.State, d gates.Decision) bool { return d.Outcome != gates.Fail || len(d.Actions) == 0 }},
		{"act has actions, skip has none", func(gates.State) bool { return true },
			func(_ gates.State, d gates.Decision) bool { return (d.Outcome == gates.Act) == isWrite(d) }},
		{"pruning needs a retention, and comes last", func(gates.State) bool { return true },
			func(st gates.State, d gates.Decision) bool {
				i := slices.IndexFunc(d.Actions, func(a gates.Action) bool { return a.Verb == gates.Prune })

				return i < 0 || (st.HasRetention && i == len(d.Actions)-1)
			}},
		{"detach fires: only detach", func(st gates.State) bool { return there(st) && fires(st.Detach) }, func(st gates.State, d gates.Decision) bool {
			return only(gates.Detach)(st, d) && !d.HasAction(gates.Prune)
		}},
		{"delete fires, detach does not", func(st gates.State) bool { return there(st) && off(st.Detach) && fires(st.Delete) },
			func(st gates.State, d gates.Decision) bool {
				return only(gates.Delete)(st, d) && !d.HasAction(gates.Prune)
			}},
		{"neither fires without an object, and nothing is created", func(st gates.State) bool {
			return st.Object == gates.Absent && st.Detach != gates.Error && (fires(st.Detach) || fires(st.Delete) && off(st.Detach))
		}, func(_ gates.State, d gates.Decision) bool {
			return d.Outcome == gates.Skip && d.Reason == gates.ReasonObjectNotFound && len(d.Actions) == 0
		}},
		{"only detach detaches, only delete deletes", func(gates.State) bool { return true }, func(st gates.State, d gates.Decision) bool {
			return (!d.HasAction(gates.Detach) || fires(st.Detach)) && (!d.HasAction(gates.Delete) || fires(st.Delete) && !fires(st.Detach))
		}},
		{"an error of detach fails the decision", func(st gates.State) bool { return (there(st) || st.Object == gates.Absent) && st.Detach == gates.Error },
			isFailed},
		{"an error of delete fails the decision", func(st gates.State) bool {
			return (there(st) || st.Object == gates.Absent) && off(st.Detach) && st.Delete == gates.Error
		}, isFailed},
		{"when is false: only pruning", func(st gates.State) bool { return below(st) && st.When == gates.False },
			func(st gates.State, d gates.Decision) bool {
				return d.Outcome == gates.Skip && d.Reason == gates.ReasonWhen && d.HasAction(gates.Prune) == st.HasRetention && !isWrite(d)
			}},
		{"an error of when fails the decision", func(st gates.State) bool { return below(st) && st.When == gates.Error }, isFailed},
		{"a stale event writes nothing", func(st gates.State) bool { return st.Stale && off(st.Detach) && off(st.Delete) },
			func(_ gates.State, d gates.Decision) bool { return len(d.Actions) == 0 }},
		{"recreate", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Managed && fires(st.Recreate)
		}, only(gates.Recreate)},
		{"recreate waits without a retention, and not with one", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Deleting && fires(st.Recreate)
		}, func(st gates.State, d gates.Decision) bool {
			return d.HasAction(gates.Recreate) == st.HasRetention && !d.HasAction(gates.Apply)
		}},
		{"recreate only if its gate fires and the object exists", func(gates.State) bool { return true },
			func(st gates.State, d gates.Decision) bool {
				return !d.HasAction(gates.Recreate) || fires(st.Recreate) && there(st)
			}},
		{"patches that fire are sent, each once, in order, and no apply", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Managed && off(st.Recreate) &&
				anyPatch(st, gates.True) && !anyPatch(st, gates.Error)
		}, func(st gates.State, d gates.Decision) bool {
			var want []gates.Action
			for i, value := range st.Patch {
				if value == gates.True {
					want = append(want, gates.Action{Verb: gates.Patch, Index: i})
				}
			}

			if st.HasRetention {
				want = append(want, gates.Action{Verb: gates.Prune})
			}

			return slices.Equal(want, d.Actions)
		}},
		{"patches only on managed objects", func(st gates.State) bool { return st.Object != gates.Managed },
			func(_ gates.State, d gates.Decision) bool { return !d.HasAction(gates.Patch) }},
		{"an error of an evaluated gate fails the decision", func(st gates.State) bool {
			if !below(st) || !passes(st.When) || st.Object == gates.Absent {
				return false
			}

			return st.Recreate == gates.Error || (off(st.Recreate) && st.Object != gates.Deleting && anyPatch(st, gates.Error))
		}, isFailed},
		{"no object: apply unless there is nothing to apply or its gate is false", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Absent
		}, func(st gates.State, d gates.Decision) bool {
			switch {
			case st.PatchOnly:
				return d.Outcome == gates.Skip
			case st.Apply == gates.Error:
				return d.Outcome == gates.Fail
			default:
				return d.HasAction(gates.Apply) == passes(st.Apply)
			}
		}},
		{"apply by content", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Managed && off(st.Recreate) && !anyPatch(st, gates.True) &&
				!anyPatch(st, gates.Error) && !st.PatchOnly && passes(st.Apply)
		}, func(st gates.State, d gates.Decision) bool {
			return d.HasAction(gates.Apply) == (st.Content != gates.Current)
		}},
		{"apply.when is false: no apply", func(st gates.State) bool { return st.Apply == gates.False },
			func(_ gates.State, d gates.Decision) bool { return !d.HasAction(gates.Apply) }},
		{"a deleting object is not applied or patched", func(st gates.State) bool { return st.Object == gates.Deleting },
			func(_ gates.State, d gates.Decision) bool {
				return !d.HasAction(gates.Apply) && !d.HasAction(gates.Patch)
			}},
		{"a foreign object fails only decisions that would write it", func(st gates.State) bool {
			return st.Object == gates.Unmanaged && below(st) && passes(st.When) &&
				st.Recreate != gates.Error && !anyPatch(st, gates.Error)
		}, func(st gates.State, d gates.Decision) bool {
			switch {
			case fires(st.Recreate), anyPatch(st, gates.True):
				return d.Outcome == gates.Fail && d.Reason == gates.ReasonNotManaged
			case st.PatchOnly:
				return d.Outcome == gates.Skip
			case st.Apply == gates.False:
				return d.Outcome == gates.Skip
			case st.Apply == gates.Error:
				return d.Outcome == gates.Fail && d.Reason == gates.ReasonGate
			default:
				return d.Outcome == gates.Fail && d.Reason == gates.ReasonNotManaged
			}
		}},
		{"pruning runs on every event that is not stale, has not failed, and does not delete the objects", func(st gates.State) bool {
			return st.HasRetention && below(st)
		}, func(_ gates.State, d gates.Decision) bool { return d.Outcome == gates.Fail || d.HasAction(gates.Prune) }},
	}
}

// isReleased returns true if the object has the annotation of a detached object.
func isReleased(st gates.State) bool {
	return st.Object == gates.Detached || st.Object == gates.DetachedUnproven
}

func isFailed(_ gates.State, d gates.Decision) bool {
	return d.Outcome == gates.Fail && d.Reason == gates.ReasonGate && len(d.Actions) == 0
}

// forEachState calls visit with every state: all combinations of the gates, patches, found objects,
// contents and flags.
func forEachState(visit func(gates.State)) {
	values := []gates.Value{gates.Unset, gates.False, gates.True, gates.Error}
	patches := [][]gates.Value{nil}

	for _, a := range values[1:] {
		patches = append(patches, newValues(a))
		for _, b := range values[1:] {
			patches = append(patches, newValues(a, b))
		}
	}

	for i := range 1 << 10 {
		base := gates.State{Detach: values[i&3], Delete: values[i>>2&3], When: values[i>>4&3], Recreate: values[i>>6&3], Apply: values[i>>8&3]}

		for _, patch := range patches {
			for found := gates.Absent; found <= gates.Unmanaged; found++ {
				// The content does not matter for a stale event.
				for content := gates.Current; content <= gates.Changed+1; content++ {
					for flags := range 8 {
						st := base
						st.Patch, st.Object, st.Content, st.Stale = patch, found, content, content > gates.Changed
						st.ResourceDeleting, st.HasRetention, st.PatchOnly = flags&1 != 0, flags&2 != 0, flags&4 != 0
						visit(st)
					}
				}
			}
		}
	}
}

// TestEveryCombination checks the rules for every state.
func TestEveryCombination(t *testing.T) {
	t.Parallel()

	all := newRules()
	held := make([]int, len(all))
	states, wrong := 0, 0

	forEachState(func(st gates.State) {
		states++

		decision := gates.Decide(st)

		for i, one := range all {
			if !one.when(st) {
				continue
			}

			held[i]++

			if !one.then(st, decision) && wrong < 10 {
				wrong++
				t.Errorf("%s:\n%+v\n%+v", one.name, st, decision)
			}
		}
	})

	for i, count := range held {
		if count == 0 {
			t.Errorf("rule %q never applies", all[i].name)
		}
	}

	t.Logf("%d states", states)
}

// TestGuideShowsTheTree checks that the guide has the diagram of the decision tree, and explains each
// reason. Run it with -update to write the diagram.
func TestGuideShowsTheTree(t *testing.T) {
	t.Parallel()

	const begin, end = "```mermaid\n", "```\n"

	path := filepath.Join("..", "..", "..", "docs", "guides", "lifecycle-gates.md")

	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}

	before, rest, ok := strings.Cut(string(data), begin)
	shown, after, closed := strings.Cut(rest, end)

	if !ok || !closed {
		t.Fatal("the guide has no diagram")
	}

	if *update {
		if err := os.WriteFile(path, []byte(before+begin+gates.Diagram()+end+after), 0o600); err != nil {
			t.Fatal(err)
		}

		shown = gates.Diagram()
	}

	if diff := cmp.Diff(gates.Diagram(), shown); diff != "" {
		t.Errorf("run go test ./platform/adapter/gates -update:\n%s", diff)
	}

	reasons := map[gates.Reason]bool{}

	forEachState(func(st gates.State) { reasons[gates.Decide(st).Reason] = true })

	for reason := range reasons {
		if !strings.Contains(after, "`"+string(reason)+"`") {
			t.Errorf("the guide does not explain %s", reason)
		}
	}
}
