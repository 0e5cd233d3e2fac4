// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain runs a test program, if go test starts this program through its flag -exec.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == execCommand {
		os.Exit(execute(os.Args[2], os.Args[3:]))
	}

	os.Exit(m.Run())
}

// runTests runs the tests of a module with the files, and returns its output.
func runTests(t *testing.T, files map[string]string) (string, bool) {
	t.Helper()

	dir := t.TempDir()
	files["go.mod"] = "module example.com/m\n\ngo 1.24\n"

	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	var out strings.Builder

	good, err := (&run{out: &out, dir: dir, retry: true, usage: true}).runAll(t.Context(), []string{"./..."})
	if err != nil {
		t.Fatal(err)
	}

	return out.String(), good
}

func TestReportsOnRealRuns(t *testing.T) {
	t.Parallel()

	const (
		head  = "package a\n\nimport \"testing\"\n\n"
		flaky = "package a\n\nimport (\n\"os\"\n\"testing\"\n)\n\nfunc TestA(t *testing.T) {\n" +
			"if err := os.Mkdir(\"was\", 0o700); err == nil { t.Fatal(\"the first time\") }\nt.Log(\"the second time\")\n}\n"
	)

	cases := map[string]struct {
		files map[string]string
		good  bool
		want  []string
		never string
		last  string
	}{
		"all pass, subtests count": {
			files: map[string]string{
				"a/a_test.go": head + "func TestA(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Log(\"quiet\") }) }\n",
				"b/b.go":      "package b\n",
			},
			good: true, want: []string{"ok    example.com/m/a"}, never: "example.com/m/b", last: "2 passed, 0 failed",
		},
		"one fails with a message": {
			files: map[string]string{
				"a/a_test.go": head + "func TestA(t *testing.T) {}\nfunc TestB(t *testing.T) { t.Error(\"one is not two\") }\n",
			},
			want: []string{"FAIL  example.com/m/a", "fail  example.com/m/a TestB: a_test.go:6: one is not two"}, last: "1 passed, 1 failed",
		},
		"one fails before much other output": {
			files: map[string]string{
				"a/a_test.go": head + "func TestB(t *testing.T) { t.Error(\"not in time\\nlog 1\\nlog 2\\nlog 3\\nlog 4\\nlog 5\") }\n",
			},
			want: []string{"fail  example.com/m/a TestB: a_test.go:5: not in time | log 2 | log 3 | log 4 | log 5"}, last: "0 passed, 1 failed",
		},
		"one fails between much other output": {
			files: map[string]string{
				"a/a_test.go": head + "func TestB(t *testing.T) {\nt.Log(\"one\")\nt.Log(\"two\")\nt.Log(\"three\")\n" +
					"t.Error(\"the reason\")\nfor range 3 { t.Log(\"a\\nb\") }\nt.Log(\"\")\n}\n",
			},
			want: []string{"TestB: a_test.go:6: one | a_test.go:9: the reason | a_test.go:10: a | a_test.go:10: a | a_test.go:10: a"},
			last: "0 passed, 1 failed",
		},
		"one fails once": {
			files: map[string]string{"a/a_test.go": flaky, "b/b_test.go": strings.Replace(head, "package a", "package b", 1) + "func TestB(t *testing.T) {}\n"},
			good:  true,
			want: []string{
				"FAIL  example.com/m/a", "again 1 packages", "FLAKY example.com/m/a failed, and passed", "FLAKY   example.com/m/a TestA: a_test.go:9: the first time",
				"a_test.go:9: the first time\n", "a_test.go:10: the second time\n", "slow  a TestA", "in 0 control planes",
			},
			last: "2 passed, 0 failed",
		},
		"passed tests do not run again": {
			files: map[string]string{"a/a_test.go": flaky +
				"func TestB(t *testing.T) { if err := os.Mkdir(\"b\", 0o700); err != nil { t.Fatal(\"twice\") } }\n"},
			good: true, want: []string{"again 1 packages that failed: -run=^(TestA)$"}, last: "2 passed, 0 failed",
		},
		"one panics once, and all is run again": {
			files: map[string]string{"a/a_test.go": strings.Replace(flaky, "t.Fatal(", "panic(", 1) + "func TestB(t *testing.T) {}\n"},
			good:  true, want: []string{"again 1 packages that failed: all tests"}, last: "2 passed, 0 failed",
		},
		"a skipped test is named with its reason": {
			files: map[string]string{
				"a/a_test.go": head + "func TestA(t *testing.T) {}\nfunc TestB(t *testing.T) { t.Skip(\"no moon\") }\n",
			},
			good: true, want: []string{"skip  example.com/m/a TestB: ", "no moon"}, last: "1 passed, 0 failed",
		},
		"all are skipped: the run passes with the reasons": {
			files: map[string]string{
				"a/a_test.go": head + "func TestA(t *testing.T) { t.Skip(\"no moon\") }\nfunc TestB(t *testing.T) { t.Skip(\"no moon\") }\n",
			},
			good: true, want: []string{"note  all tests were skipped: no moon\n"}, last: "0 passed, 0 failed, 2 skipped",
		},
		"a panic outside any result": {
			files: map[string]string{
				"a/a_test.go": head + "func TestMain(m *testing.M) { panic(\"no environment\") }\n",
			},
			want: []string{"FAIL  example.com/m/a", "no environment", "fail  example.com/m/a: "}, last: "0 passed, 1 failed",
		},
		"a package that does not compile": {
			files: map[string]string{
				"a/a_test.go": head + "func TestA(t *testing.T) { undefined() }\n",
			},
			never: "again ",
			want:  []string{"FAIL  example.com/m/a", "undefined: undefined"}, last: "0 passed, 1 failed",
		},
		"a run without tests fails": {
			files: map[string]string{"b/b.go": "package b\n"},
			last:  "0 passed, 0 failed",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, good := runTests(t, tc.files)
			if good != tc.good {
				t.Errorf("good = %v, want %v", good, tc.good)
			}

			for _, want := range tc.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q is missing", want)
				}
			}

			if tc.never != "" && strings.Contains(out, tc.never) {
				t.Errorf("%q is there", tc.never)
			}

			lines := strings.Split(strings.TrimSpace(out), "\n")
			if last := lines[len(lines)-1]; last != tc.last {
				t.Errorf("last line = %q, want %q", last, tc.last)
			}

			if t.Failed() {
				t.Logf("output:\n%s", out)
			}
		})
	}
}

// With -v, all output is printed once and immediately. The summary is the same.
func TestVerbose(t *testing.T) {
	t.Parallel()

	events := []string{
		`{"Action":"output","Package":"m/a","Test":"TestA","Output":"   1.0s  halfway\n"}`,
		`{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:7: never: it came\n"}`,
		`{"Action":"output","Package":"m/a","Test":"TestA","Output":"    a_test.go:9: the log ends\n"}`,
		`{"Action":"fail","Package":"m/a","Test":"TestA"}`,
		`{"Action":"output","Package":"m/a","Output":"FAIL\tm/a\t1s\n"}`,
		`{"Action":"fail","Package":"m/a","Elapsed":1}`,
	}

	var out strings.Builder

	report := newReport(&out)
	report.verbose = true

	for i, event := range events {
		if err := report.read(strings.NewReader(event + "\n")); err != nil {
			t.Fatal(err)
		}

		if i == 0 && out.String() != "   1.0s  halfway\n" {
			t.Errorf("after its first line, a test's output is %q", out.String())
		}
	}

	report.finish()

	if (&runSummary{out: &out, first: report}).print() {
		t.Error("a failed test is good")
	}

	const want = "   1.0s  halfway\n    a_test.go:7: never: it came\n    a_test.go:9: the log ends\nFAIL\tm/a\t1s\n"

	got, found := strings.CutPrefix(out.String(), want)
	if !found || strings.Contains(got, "halfway") {
		t.Errorf("output:\n%s", out.String())
	}

	if closing := "fail  m/a TestA: a_test.go:7: never: it came | a_test.go:9: the log ends\n0 passed, 1 failed\n"; !strings.HasSuffix(got, closing) {
		t.Errorf("closing lines:\n%s\nwant:\n%s", got, closing)
	}
}

// If several packages write at the same time, each line has the name of its package.
func TestVerboseOfSeveralPackages(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	report := newReport(&out)
	report.verbose, report.showPackage = true, true

	for _, pkg := range []string{"m/e2e/vm", "m/e2e/platform"} {
		if err := report.read(strings.NewReader(`{"Action":"output","Package":"` + pkg + `","Test":"TestA","Output":"halfway\n"}` + "\n")); err != nil {
			t.Fatal(err)
		}
	}

	if want := "vm        halfway\nplatform  halfway\n"; out.String() != want {
		t.Errorf("output %q, want %q", out.String(), want)
	}
}

func TestUnfinishedPackage(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	report := newReport(&out)

	err := report.read(strings.NewReader(`{"Action":"output","Package":"m/a","Test":"TestA","Output":"=== RUN"}` + "\nplain\n"))
	if err != nil {
		t.Fatal(err)
	}

	report.finish()

	if (&runSummary{out: &out, first: report}).print() || !strings.Contains(out.String(), "fail  m/a: it did not finish") || !strings.Contains(out.String(), "plain\n") {
		t.Errorf("output:\n%s", out.String())
	}
}

// TestInterruptedRun checks that a test that ends after the interruption, when its servers have stopped, is not
// reported as failed.
func TestInterruptedRun(t *testing.T) {
	t.Parallel()

	var out strings.Builder

	interrupted := make(chan struct{})
	report := newReport(&out)
	report.interrupted = interrupted
	read := func(action, test string) {
		t.Helper()

		if err := report.read(strings.NewReader(`{"Action":"` + action + `","Package":"m/a","Test":"` + test + `","Output":"dial: refused\n"}` + "\n")); err != nil {
			t.Fatal(err)
		}
	}

	read("run", "TestA")
	read("output", "TestA")
	close(interrupted)
	read("output", "TestA")
	read("fail", "TestA")
	report.finish()

	if got, want := out.String(), "stop  m/a: the run was interrupted\n"; got != want {
		t.Errorf("output %q, want %q", got, want)
	}
}
