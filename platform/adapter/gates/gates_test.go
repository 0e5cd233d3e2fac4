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

var update = flag.Bool("update", false, "put the diagram into the guide")

// s is short for what most cases need.
type s = gates.State

// TestNamedCases has each reason; which states come to which decision is in TestEveryCombination.
func TestNamedCases(t *testing.T) {
	t.Parallel()

	const (
		absent, managed, deleting = gates.Absent, gates.Managed, gates.Deleting
		detached, unmanaged       = gates.Detached, gates.Unmanaged
		older, equal, newer       = -1, 0, 1
		yes, no, bad              = gates.True, gates.False, gates.Error
	)

	cases := []struct {
		name    string
		state   gates.State
		outcome gates.Outcome
		reason  gates.Reason
		actions []gates.Action
	}{
		{"first event creates", s{Object: absent}, gates.Act, gates.ReasonCreate, do(gates.Apply)},
		{"same generation is left", s{Object: managed, Generation: equal}, gates.Skip, gates.ReasonUnchanged, nil},
		{"older object is applied", s{Object: managed, Generation: older}, gates.Act, gates.ReasonGeneration, do(gates.Apply)},
		{"stale event writes nothing", s{Object: managed, Generation: newer, HasRetention: true, Recreate: yes, Patch: v(yes)}, gates.Skip, gates.ReasonStale, nil},
		{"stale event still deletes", s{Object: managed, Generation: newer, Delete: yes}, gates.Act, gates.ReasonDelete, do(gates.Delete)},
		{"detach wins over delete", s{Object: managed, Detach: yes, Delete: yes}, gates.Act, gates.ReasonDetach, do(gates.Detach)},
		{"redelivery after detach", s{Object: detached, ResourceDeleting: true, Detach: no, Delete: yes}, gates.Skip, gates.ReasonDetached, nil},
		{"delete goes before a false when", s{Object: managed, When: no, Delete: yes}, gates.Act, gates.ReasonDelete, do(gates.Delete)},
		{"deleted already", s{Object: absent, Delete: yes}, gates.Skip, gates.ReasonNothingThere, nil},
		{"a stranger's object is not deleted", s{Object: unmanaged, Delete: yes}, gates.Skip, gates.ReasonNotManaged, nil},
		{"a stranger's object on a delete event", s{Object: unmanaged, ResourceDeleting: true, Detach: bad}, gates.Skip, gates.ReasonNotManaged, nil},
		{"create-only leaves a stranger's object", s{Object: unmanaged, Apply: no}, gates.Skip, gates.ReasonApplyWhen, nil},
		{"recreate with retention prunes", s{Object: managed, Recreate: yes, HasRetention: true}, gates.Act, gates.ReasonRecreate, do(gates.Recreate, gates.Prune)},
		{"recreate waits for the deletion", s{Object: deleting, Recreate: yes}, gates.Skip, gates.ReasonDeletionPending, nil},
		{"nothing is applied to what is being deleted", s{Object: deleting, Generation: older}, gates.Skip, gates.ReasonDeletionPending, nil},
		{"patches in order, no apply", s{Object: managed, Generation: older, Patch: v(yes, no, yes)}, gates.Act, gates.ReasonPatch, []gates.Action{{Verb: gates.Patch}, {Verb: gates.Patch, Index: 2}}},
		{"patch-only without a patch", s{Object: managed, Generation: older, PatchOnly: true, Patch: v(no)}, gates.Skip, gates.ReasonNoManifest, nil},
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

func v(values ...gates.Value) []gates.Value { return values }

func do(verbs ...gates.Verb) []gates.Action {
	out := make([]gates.Action, len(verbs))
	for i, verb := range verbs {
		out[i].Verb = verb
	}

	return out
}

func TestValues(t *testing.T) {
	t.Parallel()

	if gates.ValueOf(true, nil) != gates.True || gates.ValueOf(false, nil) != gates.False || gates.ValueOf(true, errors.New("x")) != gates.Error {
		t.Error("a gate's value is another one")
	}
}

// rule is one sentence of the documentation, about any state.
type rule struct {
	name string
	// if holds for a state, then has to hold for what was decided.
	when func(gates.State) bool
	then func(gates.State, gates.Decision) bool
}

func writes(d gates.Decision) bool {
	return slices.ContainsFunc(d.Actions, func(a gates.Action) bool { return a.Verb != gates.Prune })
}

// rules were written from the documents, not from the tree.
func rules() []rule {
	passes := func(v gates.Value) bool { return v == gates.Unset || v == gates.True }
	fires := func(v gates.Value) bool { return v == gates.True }
	off := func(v gates.Value) bool { return v == gates.Unset || v == gates.False }
	there := func(st gates.State) bool { return st.Object == gates.Managed || st.Object == gates.Deleting }
	anyPatch := func(st gates.State, v gates.Value) bool { return slices.Contains(st.Patch, v) }
	// below says that when is reached.
	below := func(st gates.State) bool {
		return (!there(st) || st.Generation <= 0) && st.Object != gates.Detached && (st.Object != gates.Unmanaged || !st.ResourceDeleting) && off(st.Detach) && off(st.Delete)
	}
	none := func(_ gates.State, d gates.Decision) bool { return !writes(d) }
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
		{"strangers' and detached objects are never written", func(st gates.State) bool {
			return st.Object == gates.Unmanaged || st.Object == gates.Detached
		}, none},
		{"a detached object never fails an event", func(st gates.State) bool { return st.Object == gates.Detached },
			func(_ gates.State, d gates.Decision) bool { return d.Outcome == gates.Skip && len(d.Actions) == 0 }},
		{"a failed decision does nothing at all", func(gates.State) bool { return true },
			func(_ gates.State, d gates.Decision) bool { return d.Outcome != gates.Fail || len(d.Actions) == 0 }},
		{"act means there is something to write, skip that there is not", func(gates.State) bool { return true },
			func(_ gates.State, d gates.Decision) bool { return (d.Outcome == gates.Act) == writes(d) }},
		{"pruning needs a retention, and comes last", func(gates.State) bool { return true },
			func(st gates.State, d gates.Decision) bool {
				i := slices.IndexFunc(d.Actions, func(a gates.Action) bool { return a.Verb == gates.Prune })

				return i < 0 || (st.HasRetention && i == len(d.Actions)-1)
			}},
		{"detach fires: that and nothing else", func(st gates.State) bool { return there(st) && fires(st.Detach) }, func(st gates.State, d gates.Decision) bool {
			return only(gates.Detach)(st, d) && !d.HasAction(gates.Prune)
		}},
		{"delete fires, detach does not", func(st gates.State) bool { return there(st) && off(st.Detach) && fires(st.Delete) },
			func(st gates.State, d gates.Decision) bool {
				return only(gates.Delete)(st, d) && !d.HasAction(gates.Prune)
			}},
		{"neither fires on what is not there, and nothing is made", func(st gates.State) bool {
			return st.Object == gates.Absent && st.Detach != gates.Error && (fires(st.Detach) || fires(st.Delete) && off(st.Detach))
		}, func(_ gates.State, d gates.Decision) bool {
			return d.Outcome == gates.Skip && d.Reason == gates.ReasonNothingThere && len(d.Actions) == 0
		}},
		{"only detach detaches, only delete deletes", func(gates.State) bool { return true }, func(st gates.State, d gates.Decision) bool {
			return (!d.HasAction(gates.Detach) || fires(st.Detach)) && (!d.HasAction(gates.Delete) || fires(st.Delete) && !fires(st.Detach))
		}},
		{"an error of detach is the end", func(st gates.State) bool { return (there(st) || st.Object == gates.Absent) && st.Detach == gates.Error },
			failed},
		{"an error of delete is the end", func(st gates.State) bool {
			return (there(st) || st.Object == gates.Absent) && off(st.Detach) && st.Delete == gates.Error
		}, failed},
		{"when is false: nothing but pruning", func(st gates.State) bool { return below(st) && st.When == gates.False },
			func(st gates.State, d gates.Decision) bool {
				return d.Outcome == gates.Skip && d.Reason == gates.ReasonWhen && d.HasAction(gates.Prune) == st.HasRetention && !writes(d)
			}},
		{"an error of when is the end", func(st gates.State) bool { return below(st) && st.When == gates.Error }, failed},
		{"an older event never writes over a newer object", func(st gates.State) bool {
			return there(st) && st.Generation > 0 && off(st.Detach) && off(st.Delete)
		},
			func(_ gates.State, d gates.Decision) bool { return len(d.Actions) == 0 }},
		{"recreate", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Managed && fires(st.Recreate)
		}, only(gates.Recreate)},
		{"recreate waits without a retention, and not with one", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Deleting && fires(st.Recreate)
		}, func(st gates.State, d gates.Decision) bool {
			return d.HasAction(gates.Recreate) == st.HasRetention && !d.HasAction(gates.Apply)
		}},
		{"recreate only where its gate fires and there is an object", func(gates.State) bool { return true },
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
		{"patches never without an object of ours", func(st gates.State) bool { return st.Object != gates.Managed },
			func(_ gates.State, d gates.Decision) bool { return !d.HasAction(gates.Patch) }},
		{"an error of a gate that is reached is the end", func(st gates.State) bool {
			if !below(st) || !passes(st.When) || st.Object == gates.Absent {
				return false
			}

			return st.Recreate == gates.Error || (off(st.Recreate) && st.Object != gates.Deleting && anyPatch(st, gates.Error))
		}, failed},
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
		{"apply by generation", func(st gates.State) bool {
			return below(st) && passes(st.When) && st.Object == gates.Managed && off(st.Recreate) && !anyPatch(st, gates.True) &&
				!anyPatch(st, gates.Error) && !st.PatchOnly && passes(st.Apply)
		}, func(st gates.State, d gates.Decision) bool {
			return d.HasAction(gates.Apply) == (st.Generation < 0)
		}},
		{"apply.when is false: no apply", func(st gates.State) bool { return st.Apply == gates.False },
			func(_ gates.State, d gates.Decision) bool { return !d.HasAction(gates.Apply) }},
		{"what is being deleted is not applied or patched", func(st gates.State) bool { return st.Object == gates.Deleting },
			func(_ gates.State, d gates.Decision) bool {
				return !d.HasAction(gates.Apply) && !d.HasAction(gates.Patch)
			}},
		{"a stranger's object fails what would write it, and nothing else", func(st gates.State) bool {
			return st.Object == gates.Unmanaged && !st.ResourceDeleting && off(st.Detach) && off(st.Delete) && passes(st.When) &&
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
		{"pruning runs on every event that is neither stale, nor failed, nor the end of the objects", func(st gates.State) bool {
			return st.HasRetention && below(st)
		}, func(_ gates.State, d gates.Decision) bool { return d.Outcome == gates.Fail || d.HasAction(gates.Prune) }},
	}
}

func failed(_ gates.State, d gates.Decision) bool {
	return d.Outcome == gates.Fail && d.Reason == gates.ReasonGate && len(d.Actions) == 0
}

// every calls visit with each state there is: five gates of four values, patches, what
// was found, generations and flags.
func every(visit func(gates.State)) {
	values := []gates.Value{gates.Unset, gates.False, gates.True, gates.Error}
	patches := [][]gates.Value{nil}

	for _, a := range values[1:] {
		patches = append(patches, v(a))
		for _, b := range values[1:] {
			patches = append(patches, v(a, b))
		}
	}

	for i := range 1 << 10 {
		base := gates.State{Detach: values[i&3], Delete: values[i>>2&3], When: values[i>>4&3], Recreate: values[i>>6&3], Apply: values[i>>8&3]}

		for _, patch := range patches {
			for found := gates.Absent; found <= gates.Unmanaged; found++ {
				for generation := -1; generation <= 1; generation++ {
					for flags := range 8 {
						st := base
						st.Patch, st.Object, st.Generation = patch, found, generation
						st.ResourceDeleting, st.HasRetention, st.PatchOnly = flags&1 != 0, flags&2 != 0, flags&4 != 0
						visit(st)
					}
				}
			}
		}
	}
}

// TestEveryCombination holds the tree against the rules for every state.
func TestEveryCombination(t *testing.T) {
	t.Parallel()

	all := rules()
	held := make([]int, len(all))
	states, wrong := 0, 0

	every(func(st gates.State) {
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

// TestTheGuideShowsTheTree: the diagram of the guide is drawn from the tree that decides,
// and the guide explains each reason. Run with -update to put the diagram in.
func TestTheGuideShowsTheTree(t *testing.T) {
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

	every(func(st gates.State) { reasons[gates.Decide(st).Reason] = true })

	for reason := range reasons {
		if !strings.Contains(after, "`"+string(reason)+"`") {
			t.Errorf("the guide does not explain %s", reason)
		}
	}
}
