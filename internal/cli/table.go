package cli

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"charm.land/lipgloss/v2"
	"golang.org/x/term"
)

// table prints rows of cells under headings, in aligned columns. Scripts get each row on one
// line, with all columns. In a terminal the table fits the window, and states have colors. A
// heading in brackets, like [ID], is of ids that a command takes: a terminal shows them last.
// A heading in parentheses, like (ID), is of a column that a terminal does not show.
func (a *app) table(headings string, rows [][]string) {
	if len(rows) == 0 {
		a.note("none")
		return
	}
	if width := a.width(); width > 0 {
		a.say("%s", ours(inWindow(strings.Fields(headings), rows, width)))
		return
	}
	w := tabwriter.NewWriter(a.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, strings.NewReplacer(" ", "\t", "[", "", "]", "", "(", "", ")", "").Replace(headings))
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush()
}

// width returns the width of the terminal that the output is shown in, or 0 if it is not
// shown in one.
func (a *app) width() int {
	if !terminal(a.out) {
		return 0
	}
	width, _, err := term.GetSize(int(a.out.raw.(*os.File).Fd()))
	if err != nil {
		return 0
	}
	return width
}

// Widths are in cells of the terminal.
const (
	columnGap = 2
	// wrapFrom is the width from which a cell may wrap, and breakFrom that from which a word
	// in it may be broken.
	wrapFrom, breakFrom = 10, 24
)

// column is a column of a table in a terminal.
type column struct {
	heading string
	isID    bool
	cells   []string // one a row
	full    int      // the width in which nothing wraps
	least   int      // the width in which nothing wraps that should not
	width   int      // between them
}

// columnsOf returns the columns that a terminal shows, ids last.
func columnsOf(headings []string, rows [][]string) []*column {
	var columns, ids []*column
	for i, heading := range headings {
		if strings.HasPrefix(heading, "(") {
			continue
		}
		c := &column{heading: strings.Trim(heading, "[]"), isID: strings.HasPrefix(heading, "["), cells: make([]string, len(rows))}
		c.heading = strings.ReplaceAll(c.heading, "-", " ")
		c.measure(c.heading, 0)
		for j, row := range rows {
			c.cells[j] = plain(row[i])
			c.measure(c.cells[j], wrapFrom)
		}
		if c.width = c.full; c.isID {
			c.least = c.full
			ids = append(ids, c)
			continue
		}
		columns = append(columns, c)
	}
	return append(columns, ids...)
}

// measure widens the column for a text, which may wrap from that width.
func (c *column) measure(text string, from int) {
	for word := range strings.FieldsSeq(text) {
		from = max(from, min(lipgloss.Width(word), breakFrom))
	}
	full := lipgloss.Width(text)
	c.full, c.least = max(c.full, full), max(c.least, min(full, from))
}

// isEmpty reports whether no row has something in the column.
func (c *column) isEmpty() bool {
	return !slices.ContainsFunc(c.cells, func(cell string) bool { return cell != "" && cell != "-" })
}

// isProse reports whether the column has texts: it is wide, and no other one is wider.
func (c *column) isProse(columns []*column) bool {
	return c.full > 2*wrapFrom && !slices.ContainsFunc(columns, func(other *column) bool { return other.full > c.full })
}

// cell returns the cell of a row, wrapped in the width.
func (c *column) cell(row, width int) string {
	text := c.cells[row]
	switch {
	case c.isID:
		text = faint(text)
	case c.heading == "STATE", c.heading == "AVAILABILITY":
		text = toned(text)
	}
	return block(text, width)
}

// widthOf returns the width of columns beside each other, each as wide as of returns.
func widthOf(columns []*column, of func(*column) int) int {
	sum := columnGap * (len(columns) - 1)
	for _, c := range columns {
		sum += of(c)
	}
	return sum
}

// inWindow returns a table as it fits a window of that width. If it is too wide, columns
// without content are left out, ids move to separate lines below their rows, and cells
// wrap at words. If that is not enough the last column moves below, too, if it is prose. If
// it is not, or that is not enough either, each row becomes a list of its cells.
func inWindow(headings []string, rows [][]string, width int) string {
	columns := columnsOf(headings, rows)
	full := func(c *column) int { return c.full }
	least := func(c *column) int { return c.least }
	var below []*column
	move := func() {
		last := len(columns) - 1
		columns, below = columns[:last], append(below, columns[last])
	}
	if widthOf(columns, full) > width {
		columns = append(columns[:1], slices.DeleteFunc(columns[1:], (*column).isEmpty)...)
	}
	if last := columns[len(columns)-1]; last.isID && len(columns) > 1 && widthOf(columns, full) > width {
		move()
	}
	if last := columns[len(columns)-1]; last.isProse(columns) && len(columns) > 1 && widthOf(columns, least) > width {
		move()
	}
	if widthOf(columns, least) > width || slices.ContainsFunc(below, func(c *column) bool { return columnGap+c.least > width }) {
		slices.Reverse(below)
		return asLists(append(columns, below...), width)
	}
	narrow(columns, width)
	var out strings.Builder
	var line []string
	for _, c := range columns {
		line = append(line, block(strong(c.heading), c.width))
	}
	writeBeside(&out, columnGap, line)
	for i := range rows {
		line = nil
		for _, c := range columns {
			line = append(line, c.cell(i, c.width))
		}
		writeBeside(&out, columnGap, line)
		for _, c := range slices.Backward(below) {
			writeBeside(&out, columnGap, []string{"", c.cell(i, min(c.full, width-columnGap))})
		}
	}
	return out.String()
}

// narrow makes the widest columns narrower, down to their least widths, until all of them fit.
func narrow(columns []*column, width int) {
	for widthOf(columns, func(c *column) int { return c.width }) > width {
		widest := new(column)
		for _, c := range columns {
			if c.width > max(c.least, widest.width) {
				widest = c
			}
		}
		if widest.width == 0 {
			return
		}
		widest.width--
	}
}

// inLines returns a table as lines that fit a window of that width, one for each row: texts
// that are too wide are cut.
func inLines(headings string, rows [][]string, width int) []string {
	columns := columnsOf(strings.Fields(headings), rows)
	for _, c := range columns {
		c.least = min(c.full, 4)
	}
	narrow(columns, width)
	lines := make([]string, 1+len(rows))
	for i := range lines {
		var cells []string
		for _, c := range columns {
			text := strong(cut(c.heading, c.width))
			if i > 0 {
				text = toned(cut(c.cells[i-1], c.width))
			}
			cells = append(cells, block(text, c.width))
		}
		lines[i] = cut(strings.TrimRight(strings.Join(cells, strings.Repeat(" ", columnGap)), " "), width)
	}
	return lines
}

// cut returns a text without what is beyond the width.
func cut(text string, width int) string {
	switch {
	case lipgloss.Width(text) <= width:
		return text
	case width < 2:
		return "…"
	}
	return lipgloss.NewStyle().Inline(true).MaxWidth(width-1).Render(text) + "…"
}

// asLists returns each row as a list of its cells, with their headings before them.
func asLists(columns []*column, width int) string {
	labels := 0
	for _, c := range columns {
		labels = max(labels, lipgloss.Width(c.heading))
	}
	var out strings.Builder
	for i := range columns[0].cells {
		if i > 0 {
			out.WriteString("\n")
		}
		for _, c := range columns {
			if cell := c.cells[i]; cell != "" && cell != "-" {
				writeBeside(&out, columnGap, []string{block(strong(c.heading), labels), c.cell(i, max(width-labels-columnGap, 1))})
			}
		}
	}
	return out.String()
}

// block returns a text, wrapped at its spaces, as a block of that width.
func block(text string, width int) string {
	return lipgloss.NewStyle().Width(width).Render(wrap(plain(text), width))
}

// wrap wraps a text at its spaces. lipgloss would wrap after hyphens, too, and break flags of
// commands and ids of models there.
func wrap(text string, width int) string {
	const hyphen = "\ue02d" // of no text
	text = lipgloss.Wrap(strings.ReplaceAll(text, "-", hyphen), width, "")
	return strings.ReplaceAll(text, hyphen, "-")
}

// writeBeside writes blocks beside each other, with a gap between them.
func writeBeside(out *strings.Builder, gap int, blocks []string) {
	for i := range blocks[1:] {
		blocks[i] = lipgloss.NewStyle().PaddingRight(gap).Render(blocks[i])
	}
	for line := range strings.SplitSeq(lipgloss.JoinHorizontal(lipgloss.Top, blocks...), "\n") {
		out.WriteString(strings.TrimRight(line, " ") + "\n")
	}
}

// toned returns a text with the state that it begins with in its color, as on the site.
func toned(text string) string {
	for _, t := range tones {
		if state := t.states.FindString(text); state != "" {
			return t.style(state) + text[len(state):]
		}
	}
	return text
}

// tones are the colors of states.
var tones = [...]struct {
	states *regexp.Regexp
	style  func(string) string
}{
	{regexp.MustCompile(`^(ready|live|online|connected|serving|running|open|loaded|in use|done|ok)\b`), good},
	{regexp.MustCompile(`^(busy|paused|outside (its )?hours|reconnecting|returning|used up today|waiting|draining|loading|not used|note)\b`), warn},
	{regexp.MustCompile(`^(offline|revoked|refused|fenced|expired|disabled|gone|failed|FAIL)\b`), bad},
}

// maxText is the greatest width of text for reading.
const maxText = 120

// hang prints text behind a head. In a terminal the text wraps at words, beside the head.
func (a *app) hang(head, text string) {
	width := min(a.width(), maxText)
	if width == 0 {
		a.say("%s%s\n", head, text)
		return
	}
	var out strings.Builder
	head = plain(head)
	writeBeside(&out, 0, []string{head, wrap(plain(text), max(width-lipgloss.Width(head), breakFrom))})
	a.say("%s", ours(out.String()))
}

// note prints a faint remark as a line.
func (a *app) note(text string) { a.hang("", faint(text)) }
