// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/dustin/go-humanize/english"
	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/color"

	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/jobs"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/screen"
)

// Minimum size of a frame.
const (
	minWidth  = 40
	minHeight = 8
	// chromeHeight is the number of lines of a frame that are not rows of the list: the counts, the filter, the
	// names of the lists, the column titles and the keys.
	chromeHeight = 6
)

// line is one line of a frame.
type line struct {
	text  string
	style tcell.Style
}

// state is the state of the user interface.
type state struct {
	server string
	// shownList is the index of the list that is shown, such as listPools.
	shownList int
	views     [listCount]listView
	// isTyping is true while the user types the filter.
	isTyping bool
	// pane has lines that are shown instead of a list; nil if a list is shown.
	pane *pane
}

// listView is the state of one list.
type listView struct {
	// selected is the index of the selected row.
	selected int
	filter   string
	// sortedBy is the number of the column by which rows are sorted, starting at 1; 0 is the order of the snapshot.
	sortedBy   int
	isReversed bool
}

// pane has lines that can be scrolled. scroll is the index of the first line that is shown.
type pane struct {
	lines  []string
	scroll int
}

// Names of keys. The name of a letter is the letter.
const (
	keyUp, keyDown, keyPageUp, keyPageDown         = "up", "down", "page up", "page down"
	keyEnter, keyEscape, keyTab, keyErase, keyStop = "enter", "escape", "tab", "backspace", "ctrl-c"
)

// action is what the user asks for with a key, beyond a change of the state.
type action int

const (
	actionNone action = iota
	actionQuit
	actionDetails
	actionLog
)

// handleKey updates the state for a key press, and returns what else the user asks for.
func (s *state) handleKey(key string, current snapshot) action {
	move := map[string]int{keyUp: -1, "k": -1, keyDown: 1, "j": 1, keyPageUp: -10, keyPageDown: 10}[key]
	view := &s.views[s.shownList]

	switch {
	case key == keyStop:
		return actionQuit
	case s.isTyping:
		s.handleTyping(key)
	case s.pane != nil && (key == keyEscape || key == "q"):
		s.pane = nil
	case s.pane != nil:
		s.pane.scroll += move // render limits it
	case key == "q":
		return actionQuit
	case key == keyEscape:
		view.filter = ""
	case key == "?":
		s.pane = &pane{lines: keyHelp()}
	default:
		return s.handleListKey(key, move, current)
	}

	return actionNone
}

// handleListKey updates the state for a key press in a list, and returns what else the user asks for.
func (s *state) handleListKey(key string, move int, current snapshot) action {
	view := &s.views[s.shownList]
	rows := len(s.visibleTable(current).rows)

	switch {
	case move != 0:
		view.selected = min(max(view.selected+move, 0), max(rows-1, 0))
	case key == keyTab:
		s.shownList = (s.shownList + 1) % listCount
	case key == "1" || key == "2" || key == "3":
		s.shownList = int(key[0] - '1')
	case key == "/":
		s.isTyping = true
	case key == "s":
		view.sortedBy = (view.sortedBy + 1) % (len(current.tables[s.shownList].columns) + 1)
	case key == "r":
		view.isReversed = !view.isReversed
	case key == keyEnter && rows > 0:
		return actionDetails
	case key == "l" && rows > 0:
		return actionLog
	}

	return actionNone
}

// handleTyping updates the filter for a key press.
func (s *state) handleTyping(key string) {
	filter := &s.views[s.shownList].filter

	switch first, size := utf8.DecodeRuneInString(key); {
	case key == keyEnter:
		s.isTyping = false
	case key == keyEscape:
		*filter, s.isTyping = "", false
	case key == keyErase:
		_, last := utf8.DecodeLastRuneInString(*filter)
		*filter = (*filter)[:len(*filter)-last]
	case size == len(key) && unicode.IsPrint(first):
		*filter += key
	}
}

// visibleTable returns the rows of the shown list that match its filter, in its order. It also moves the selection
// to the last row if the list has become shorter.
func (s *state) visibleTable(current snapshot) table {
	out := current.tables[s.shownList].selectRows(s.views[s.shownList])
	s.views[s.shownList].selected = min(s.views[s.shownList].selected, max(len(out.rows)-1, 0))

	return out
}

// render returns the lines of a frame with the given size. It uses minWidth and minHeight if the size is
// smaller.
func (s *state) render(current snapshot, width, height int) []line {
	width, height = max(width, minWidth), max(height, minHeight)

	if s.pane != nil {
		return s.pane.render(width, height)
	}

	bold := tcell.StyleDefault.Bold(true)
	shown := s.visibleTable(current)
	selected := s.views[s.shownList].selected
	visible := height - chromeHeight
	from := max(selected-visible+1, 0)
	until := min(from+visible, len(shown.rows))

	var out []line
	for _, text := range s.renderHeader(current, width) {
		out = append(out, line{text: text})
	}

	filter := s.renderFilter(len(shown.rows), len(current.tables[s.shownList].rows), width)
	out = append(out, line{filter, bold}, line{text: s.renderTabs(current, width)})

	for i, text := range screen.Table(shown.rows[from:until], shown.columns, width) {
		// The first line has the titles of the columns. From here on, i is the index of the row.
		switch i += from - 1; {
		case i < from:
			out = append(out, line{text, bold})
		case i == selected:
			fill := strings.Repeat(" ", max(width-utf8.RuneCountInString(text), 0))
			out = append(out, line{text + fill, toneStyle(shown.rows[i].tone).Reverse(true)})
		default:
			out = append(out, line{text, toneStyle(shown.rows[i].tone)})
		}
	}

	if len(shown.rows) == 0 {
		out = append(out, line{text: "none"})
	}

	keys := "?: keys   /: filter   s r: sort   enter: details   l: log   tab: list   q: quit"
	if s.isTyping {
		keys = "enter: keep the filter   esc: clear the filter"
	}

	return appendKeys(out, keys, width, height)
}

// appendKeys fills a frame with empty lines, and adds the line with the keys.
func appendKeys(out []line, keys string, width, height int) []line {
	out = append(out, make([]line, max(height-1-len(out), 0))...)

	return append(out, line{screen.Clip(keys, width), tcell.StyleDefault.Dim(true)})
}

// toneStyle returns the style of a row. The colors are those of the terminal's palette.
func toneStyle(tone live.Tone) tcell.Style {
	colors := map[live.Tone]color.Color{
		live.ToneGood: color.Green, live.ToneWait: color.Olive, live.ToneBusy: color.Olive, live.ToneBad: color.Maroon,
	}

	return tcell.StyleDefault.Foreground(colors[tone])
}

// renderHeader returns two lines with the number of jobs and machines by state, and the first object that is
// not ready.
func (s *state) renderHeader(current snapshot, width int) []string {
	sum := current.summary
	first := s.server + "  " + english.Plural(sum.Waiting, "job", "") + " waiting"

	if sum.Waiting > 0 {
		first += ", the longest for " + jobs.FormatDuration(sum.LongestWait.Seconds())
	}

	first += fmt.Sprintf("; %d running; %d finished in the last hour, %d of them failed", sum.Running, sum.Finished, sum.Failed)
	second := fmt.Sprintf("machines: %d busy, %d idle, %d starting, %d ending, %d failed",
		sum.Machines.Busy, sum.Machines.Idle, sum.Machines.Starting, sum.Machines.Ending, sum.Machines.Failed)

	if len(sum.Troubles) > 0 {
		second += fmt.Sprintf("; not ready: %s %s", sum.Troubles[0].Kind, sum.Troubles[0].Name)
		if more := len(sum.Troubles) - 1; more > 0 {
			second += fmt.Sprintf(" and %d more", more)
		}
	}

	return []string{screen.Clip(first, width), screen.Clip(second, width)}
}

// renderFilter returns the line with the filter and the number of rows that match it, or "" if there is no filter.
func (s *state) renderFilter(matching, total, width int) string {
	filter := s.views[s.shownList].filter
	if filter == "" && !s.isTyping {
		return ""
	}

	cursor := ""
	if s.isTyping {
		cursor = "_"
	}

	return screen.Clip(fmt.Sprintf("%d of %d match /%s%s", matching, total, filter, cursor), width)
}

// renderTabs returns the line with the names of the lists. The current list is in brackets.
func (s *state) renderTabs(current snapshot, width int) string {
	names := [listCount]string{"pools", "machines", "jobs"}
	cells := make([]string, listCount)

	for i, name := range names {
		cells[i] = fmt.Sprintf(" %d %s %d ", i+1, name, len(current.tables[i].rows))
		if i == s.shownList {
			cells[i] = "[" + strings.TrimSpace(cells[i]) + "]"
		}
	}

	return screen.Clip(strings.Join(cells, " "), width)
}

// render returns the lines of a frame with the pane. It wraps lines that are too long.
func (p *pane) render(width, height int) []line {
	var wrapped []string

	for _, text := range p.lines {
		wrapped = append(wrapped, screen.Wrap(text, width)...)
	}

	visible := max(height-1, 0)
	p.scroll = min(max(p.scroll, 0), max(len(wrapped)-visible, 0))

	var out []line
	for _, text := range wrapped[p.scroll:min(p.scroll+visible, len(wrapped))] {
		out = append(out, line{text: text})
	}

	return appendKeys(out, "up down: scroll   esc: back", width, height)
}

// keyHelp returns the lines that describe the keys and the colors.
func keyHelp() []string {
	return []string{
		"Keys",
		"",
		"  1 2 3, tab           show the pools, the machines or the jobs",
		"  up down, k j         select a row, or scroll; page up and page down: ten rows",
		"  enter                show the details of the selected row",
		"  l                    show the log of the selected job, or of the job of the selected machine",
		"  /                    filter the rows: type words that a row must contain; enter keeps the filter, esc clears it",
		"  s                    sort by the next column; after the last column, in the order at the start",
		"  r                    reverse the order",
		"  ?                    show the keys",
		"  esc, q               go back; in a list, esc clears the filter, and q quits",
		"  ctrl-c               quit",
		"",
		"Colors",
		"",
		"  green                works: a pool or a machine that is ready, a job that runs or has succeeded",
		"  yellow               waits: a queued job, a machine that starts or ends, a paused pool",
		"  red                  fails: a pool that is not ready, a failed machine or job",
	}
}
